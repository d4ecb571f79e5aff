"""Runs the cases of a contender: speed and memory, faults, several texts for an image, and ten times the images."""

import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.contenders import Contender
from tests.benchmarks.peers.inputs import TABLE, Case, Sizes, find_corrupt, name_row
from tests.benchmarks.peers.outputs import read_scores
from tests.benchmarks.peers.watching import Measured, Specification, watch_in_process

MAX_SAID_CHARACTERS = 300
MAX_FIRST_SHARE = 0.6
"""Share of a run's time after which its first score is too late to kill the run at half of its scores."""
ROUNDS = ((Case.LONG, Case.BASE, Case.CORRUPT, Case.ASKED), (Case.MANY,))
"""The cases of all contenders that run before the others, so that an exceeded time costs the last cases only. The first
is short, because the first run reads an environment's packages from the disk.
"""
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
    """Error that prevented its environment, if any."""
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
    ends: float
    """Time of time.monotonic() after which no run starts."""

    def run_cases(self, results: ContenderResults, cases: Sequence[str]) -> None:
        """Run the cases for which there is time, unless the base case failed."""
        for case in cases:
            base = results.runs.get(Case.BASE)
            if time.monotonic() > self.ends or (base and not base.finished):
                return
            result, scores = self.run_case(case)
            results.runs[case] = result
            if case == Case.BASE:
                results.scores = scores
            if case == Case.MANY and result.finished:
                self._restart(results)

    def _restart(self, results: ContenderResults) -> None:
        """Kill the run with many images at half of its scores, or of its time if it writes them late."""
        many = results.runs[Case.MANY]
        if time.monotonic() > self.ends:
            return
        half = (many.pairs // 2, many.measured.seconds / 2 if self._writes_late(many) else None)
        results.runs[RESTART], _ = self.run_case(Case.MANY, RESTART, kill=half)
        results.runs[RESTARTED], _ = self.run_case(Case.MANY, RESTART, keep=True)

    def _writes_late(self, many: CaseResult) -> bool:
        first = many.measured.first_seconds
        return first is None or first > MAX_FIRST_SHARE * many.measured.seconds

    def run_case(
        self, case: str, name: str = "", *, kill: tuple[int, float | None] | None = None, keep: bool = False
    ) -> tuple[CaseResult, dict[str, float | None]]:
        """Run the contender on a case, and return the result and the scores."""
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
        scores = read_scores(output, self.contender.metric)
        rows = [json.loads(line) for line in (self.inputs / case / TABLE).read_text().splitlines()]
        odd_file = {Case.CORRUPT: find_corrupt(self.sizes), Case.LONG: 0}.get(case)
        result = CaseResult(
            measured=measured, pairs=len(rows), scored=sum(score is not None for score in scores.values()),
            nulls=sum(score is None for score in scores.values()), said=_find_last_line(log),
            odd=None if odd_file is None else scores.get(name_row(odd_file)),
        )  # fmt: skip
        name = "restarted" if keep else output.name
        print(
            f"{self.contender.measure}, {self.contender.name}, {name}: {result.scored} of {result.pairs} scored in "
            f"{measured.seconds:.1f} s, first after {measured.first_seconds or math.nan:.1f} s, "
            f"{measured.cpu_seconds:.1f} s of CPU, {measured.rss_bytes / 1e6:,.0f} MB, exit code {measured.exit_code}; "
            f"{result.said}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if not kill:
            shutil.rmtree(output)
        return result, scores


def _find_last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:MAX_SAID_CHARACTERS] if lines else ""


def compare_scores(ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> float | None:
    """Return the largest difference between scores of the same images, or None if no image has two."""
    both = [(ours[name], score) for name, score in theirs.items() if score is not None]
    differences = [abs(own - score) for own, score in both if own is not None]
    return max(differences, default=None)
