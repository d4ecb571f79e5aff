"""What came of a night: the file that says so, and the webhook that is told."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from plumbline.operators.base.sentences import names, plural
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.cells.suites import SUITES


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A clear change of one generator by one metric, over all prompts (`overall`) or those of one skill."""

    generator: str
    metric: str
    skill: str
    before: float
    """Means over the prompts that both runs scored."""
    after: float
    difference: float
    low: float | None
    """The difference's 95% interval, bootstrapped over prompts; None of a single prompt."""
    high: float | None
    effect: float
    """Matched-pairs rank-biserial correlation of the signed ranks; below 0 for the worse."""
    p_value: float
    """Wilcoxon signed-rank, two-sided."""
    p_holm: float
    """Corrected (Holm 1979) for every generator, metric and skill that was looked at."""
    prompts: int

    def __str__(self) -> str:
        at = "" if self.skill == OVERALL else f" at {self.skill}"
        sure = "< 0.001" if self.p_holm < 0.001 else f"= {self.p_holm:.3f}"
        prompts = plural(self.prompts, "prompt")
        return (
            f"{self.generator} by {self.metric}{at}: {self.before:.3f} to {self.after:.3f} "
            f"({self.difference:+.3f} on {prompts}, p {sure})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NightOutcome:
    """What nightly.json in a run's folder says; its presence says that the night has told of the run."""

    run_id: str
    exit_code: int
    """Of the night that published the run."""
    benchmark: str
    began: str
    ended: str
    report: str
    """The address of its report."""
    counts: Mapping[str, Any]
    """Rows, those without a score, coverage and cells, as in the manifest."""
    compared_with: str | None
    """The id of the earlier run."""
    not_compared: str | None
    """Why there is none."""
    regressions: Sequence[Moved]
    improvements: Sequence[Moved]
    sentences: Sequence[str]
    """All that the report says of what changed, came and went."""
    can_tell: bool = True
    """Whether any outcome on so many prompts would have been a regression or an improvement."""
    unlike: Sequence[str] = field(default_factory=list)
    """The generators that were generated with other settings than in the earlier run: no change of theirs is clear."""
    edited: int = 0
    """Prompts that have another text in the earlier run and are not compared."""
    trends: str | None = None
    """The address of the page of trends; None where it could not be written."""
    gate: Mapping[str, Any] | None = None
    """What its gate says, with every check; None where there is none."""
    webhook: str | None = None
    """`delivered`, or why not; None where none was asked for."""

    @property
    def name(self) -> str:
        """What it is of."""
        return f"run {self.run_id}"

    @property
    def path(self) -> str:
        """Where it stands in the store."""
        return outcome_path(self.run_id)

    def summary(self) -> str:
        """In a line."""
        compared = f"since {self.compared_with}" if self.compared_with else f"not compared: {self.not_compared}"
        none = "no regression" if self.can_tell else "too few prompts to tell a regression"
        said = plural(len(self.regressions), "regression") if self.regressions else none
        said += f" (other settings: {names(self.unlike)})" if self.unlike else ""
        said += f" (left out: {plural(self.edited, 'prompt')} with edited texts)" if self.edited else ""
        judged = f"; {self.gate['summary']}" if self.gate else ""
        return (
            f"{self.benchmark}, run {self.run_id}: {f'{said} {compared}' if self.compared_with else compared}; "
            f"coverage {self.counts['coverage']:.2%}{judged}"
        )

    def to_json(self) -> dict[str, Any]:
        """As it is written, printed and sent."""
        return {"summary": self.summary(), **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteOutcome:
    """What nightly.json in a suite's folder says; its presence says that the night has told of the suite."""

    suite_id: str
    exit_code: int
    """Of the night that published the suite: the worst of its benchmarks'."""
    report: str
    """The address of its page."""
    runs: Mapping[str, str]
    """By benchmark the id of its run, also of those in which nothing was new."""
    benchmarks: Sequence[NightOutcome]
    """What came of each run of which no night had told, with one correction for all that was looked at in them."""
    webhook: str | None = None
    """`delivered`, or why not; None where none was asked for."""

    @property
    def name(self) -> str:
        """What it is of."""
        return f"suite {self.suite_id}"

    @property
    def path(self) -> str:
        """Where it stands in the store."""
        return suite_outcome_path(self.suite_id)

    def summary(self) -> str:
        """In a line."""
        regressions = sum(len(outcome.regressions) for outcome in self.benchmarks)
        none = "no regression" if any(one.compared_with for one in self.benchmarks) else "nothing compared"
        said = plural(regressions, "regression") if regressions else none
        new = f"{len(self.benchmarks)} with a new run" if self.benchmarks else "none with a new run"
        stopped = [outcome.benchmark for outcome in self.benchmarks if outcome.gate and not outcome.gate["passed"]]
        judged = f"; the gate failed on {names(stopped)}" if stopped else ""
        return f"suite {self.suite_id}: {plural(len(self.runs), 'benchmark')}, {new}; {said}{judged}"

    def to_json(self) -> dict[str, Any]:
        """As it is written, printed and sent."""
        benchmarks = [outcome.to_json() for outcome in self.benchmarks]
        return {"summary": self.summary(), **asdict(self), "benchmarks": benchmarks}


Outcome = TypeVar("Outcome", NightOutcome, SuiteOutcome)
_OUTCOME = TypeAdapter(NightOutcome)
_SUITE_OUTCOME = TypeAdapter(SuiteOutcome)


def read_outcome(store: Store, run_id: str) -> NightOutcome | None:
    """What a night told of a run; None where none has, or its file was harmed."""
    return _read(store, outcome_path(run_id), _OUTCOME)


def read_suite_outcome(store: Store, suite_id: str) -> SuiteOutcome | None:
    """What a night told of a suite; None where none has, or its file was harmed."""
    return _read(store, suite_outcome_path(suite_id), _SUITE_OUTCOME)


def mark_told(store: Store, outcome: SuiteOutcome) -> None:
    """Writes into the folder of each new run of a suite what was told of it, where it is not there: so that it counts
    as told where its benchmark is swept alone, and is what later runs are compared with.
    """
    for benchmark in outcome.benchmarks:
        if read_outcome(store, benchmark.run_id) is None:
            store.write_json(benchmark.path, replace(benchmark, webhook=outcome.webhook).to_json())


def _read(store: Store, path: str, adapter: TypeAdapter[Outcome]) -> Outcome | None:
    try:
        return adapter.validate_python(store.read_json(path) or {}, extra="ignore")
    except ValidationError:
        return None


def suite_outcome_path(suite_id: str) -> str:
    """Where the outcome of a suite stands in the store."""
    return f"{SUITES}/{suite_id}/nightly.json"


def outcome_path(run_id: str) -> str:
    """Where the outcome of a run stands in the store."""
    return f"runs/{run_id}/nightly.json"


SECONDS = 10.0
"""For each step of one try: to connect, to send, and to be answered."""
PAUSES = (1.0, 4.0, 16.0)
"""Before another try."""


def send(
    url: str,
    message: Mapping[str, Any],
    *,
    seconds: float = SECONDS,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Posts the message as JSON; what went wrong, or None. What may pass (a refused connection, 429, 5xx) is tried
    again a few times; of the address the host alone is named.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request with its whole address
    problem = None
    for before in (0.0, *PAUSES):
        if before:
            pause(before)
        status = _post(url, message, seconds)
        if isinstance(status, int) and 200 <= status < 300:
            return None
        problem = f"{urlsplit(url).hostname}: {f'HTTP {status}' if isinstance(status, int) else status}"
        if isinstance(status, int) and status < 500 and status != 429:
            break
    return problem


def _post(url: str, message: Mapping[str, Any], seconds: float) -> int | str:
    """The status that it was answered with, or why there is none; what an answer says is not read."""
    try:
        with (
            httpx.Client(timeout=seconds, follow_redirects=False) as client,
            client.stream("POST", url, json=message) as response,
        ):
            return response.status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return type(error).__name__
