"""Runs the cases of a contender: speed and memory, faults, several texts for an image, and ten times the images."""

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.contenders import Contender
from tests.benchmarks.peers.inputs import TABLE, Case, Sizes, find_corrupt
from tests.benchmarks.peers.outputs import STORE_FOLDER, read_scores
from tests.benchmarks.peers.watching import Measured, Specification, watch_in_process

MAX_SAID_CHARACTERS = 300
CASES = (Case.BASE, Case.CORRUPT, Case.LONG, Case.ASKED, Case.MANY)
"""All cases in the order in which they run."""
RESTART, RESTARTED = "killed", "restarted"
"""Runs of the case with many images that are killed at half of the scores, and then started again."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One run of a contender."""

    measured: Measured
    pairs: int
    """Number of rows in the table."""
    scored: int
    """Number of rows with a score."""
    nulls: int
    """Number of rows without a score that are in the output."""
    said: str
    """Last line that the command printed."""
    odd: float | None = None
    """Score of the row with the corrupt image or the long prompt, if it has one."""

    @property
    def finished(self) -> bool:
        return self.scored + self.nulls > 0 and self.measured.exit_code is not None

    @property
    def pairs_a_second(self) -> float:
        return self.scored / self.measured.seconds


@dataclass(kw_only=True)
class ContenderResults:
    """All runs of a contender."""

    name: str
    measure: str
    is_peer: bool
    versions: list[str]
    lines: int
    reason: str
    failure: str | None = None
    """Why it has no environment."""
    runs: dict[str, CaseResult] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    """Scores of the images of the base case."""
    difference: float | None = None
    """Largest difference from the scores of the first contender with this measure."""

    def describe(self) -> dict[str, Any]:
        """Return the results as JSON, without the scores."""
        return {name: value for name, value in asdict(self).items() if name != "scores"}


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The folders and limits of a comparison."""

    contender: Contender
    python: Path
    environment: Mapping[str, str]
    checkpoints: Path
    inputs: Path
    folder: Path
    """Folder for outputs and logs."""
    sizes: Sizes
    limit: float
    """Seconds for each run."""
    cases: Collection[str] = tuple(CASES)
    """The cases to run; the base case always runs."""
    ends: float
    """Time of time.monotonic() after which no run starts."""

    def run_all(self, results: ContenderResults, report: Callable[[str, CaseResult], None]) -> None:
        """Run all cases for which there is time, until the base case fails."""
        for case in CASES:
            if case not in self.cases and case != Case.BASE:
                continue
            if time.monotonic() > self.ends:
                return
            results.runs[case], scores = self.run_case(case)
            report(case, results.runs[case])
            if case == Case.BASE:
                results.scores = scores
                if not results.runs[case].finished:
                    return
        if Case.MANY in results.runs and results.runs[Case.MANY].finished and time.monotonic() < self.ends:
            self._restart(results, report)

    def _restart(self, results: ContenderResults, report: Callable[[str, CaseResult], None]) -> None:
        """Kill the run with many images at half of its scores, or of its time if it writes none before its end."""
        many = results.runs[Case.MANY]
        half = (many.pairs // 2, many.measured.seconds / 2 if self._writes_at_end(many) else None)
        results.runs[RESTART], _ = self.run_case(Case.MANY, RESTART, kill=half)
        report(RESTART, results.runs[RESTART])
        results.runs[RESTARTED], _ = self.run_case(Case.MANY, RESTART, keep=True)
        report(RESTARTED, results.runs[RESTARTED])

    def _writes_at_end(self, many: CaseResult) -> bool:
        first = many.measured.first_seconds
        return first is None or first > 0.9 * many.measured.seconds

    def run_case(
        self, case: str, name: str = "", *, kill: tuple[int, float | None] | None = None, keep: bool = False
    ) -> tuple[CaseResult, dict[str, float | None]]:
        """Run the contender on a case, and return what came of it, and its scores."""
        output = self.folder / (name or case)
        if not keep:
            shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{output.name}.log"
        measured = watch_in_process(
            Specification(
                command=self.contender.make_command(self.python, self.checkpoints, self.inputs, case, output),
                output=str(output), log=str(log), limit=self.limit, environment=self.environment,
                kill_at=kill[0] if kill else None, kill_after=kill[1] if kill else None,
            )
        )  # fmt: skip
        scores = read_scores(output, self.contender.find_metric(case))
        texts = self.sizes.texts if self.contender.asks_pack(case) else 1
        rows = [json.loads(line) for line in (self.inputs / case / TABLE).read_text().splitlines()]
        odd_file = {Case.CORRUPT: find_corrupt(self.sizes), Case.LONG: 0}.get(case)
        result = CaseResult(
            measured=measured, pairs=len(rows), scored=texts * sum(score is not None for score in scores.values()),
            nulls=texts * sum(score is None for score in scores.values()), said=_find_last_line(log),
            odd=None if odd_file is None else scores.get(f"{odd_file:06d}"),
        )  # fmt: skip
        shutil.rmtree(output / STORE_FOLDER / "runs", ignore_errors=True)
        return result, scores


def _find_last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:MAX_SAID_CHARACTERS] if lines else ""


def compare_scores(ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> float | None:
    """Return the largest difference between scores of the same images, or None if no image has two."""
    both = [(ours[name], score) for name, score in theirs.items() if score is not None]
    differences = [abs(own - score) for own, score in both if own is not None]
    return max(differences, default=None)
