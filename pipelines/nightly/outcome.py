"""Outcome of a nightly run, its file nightly.json, and its webhook."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from plumbline.operators.base.sentences import format_names, format_quantity
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import SUITES_FOLDER


@dataclass(frozen=True, kw_only=True, slots=True)
class ClearChange:
    """A significant change of a generator's mean score by a metric, on all prompts (`overall`) or a skill's prompts."""

    generator: str
    metric: str
    skill: str
    before: float
    """Mean in the earlier run, over the prompts that both runs scored."""
    after: float
    """Mean in this run, over the same prompts."""
    difference: float
    low: float | None
    """Lower end of the difference's 95% interval, bootstrapped over prompts; None for a single prompt."""
    high: float | None
    effect: float
    """Matched-pairs rank-biserial correlation of the signed ranks; negative if the generator became worse."""
    p_value: float
    """Two-sided p-value of the Wilcoxon signed-rank test."""
    p_holm: float
    """p-value corrected by Holm's method (1979) over all generators, metrics and skills that were compared."""
    prompts: int

    def __str__(self) -> str:
        at = "" if self.skill == OVERALL else f" at {self.skill}"
        sure = "< 0.001" if self.p_holm < 0.001 else f"= {self.p_holm:.3f}"
        prompts = format_quantity(self.prompts, "prompt")
        return (
            f"{self.generator} by {self.metric}{at}: {self.before:.3f} to {self.after:.3f} "
            f"({self.difference:+.3f} on {prompts}, p {sure})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NightOutcome:
    """Content of nightly.json in a run's folder; the file exists once a nightly run has reported on the run."""

    run_id: str
    exit_code: int
    """Exit code of the nightly run that published this run."""
    benchmark: str
    began: str
    ended: str
    report: str
    counts: Mapping[str, Any]
    """Numbers of cells, rows and rows without a score, and the coverage, as recorded in the manifest."""
    compared_with: str | None
    not_compared: str | None
    """Reason why the run is not compared; None if it is."""
    regressions: Sequence[ClearChange]
    improvements: Sequence[ClearChange]
    sentences: Sequence[str]
    """Sentences of the report about changed, new and removed generators and metrics."""
    can_tell: bool = True
    """False if there are too few prompts for any change to be significant."""
    unlike: Sequence[str] = field(default_factory=list)
    """Generators with different generation settings in the two runs; changes in their scores do not count."""
    edited: int = 0
    """Number of prompts that are not compared because their text differs in the earlier run."""
    trends: str | None = None
    """URL of the trends page; None if it could not be written."""
    gate: Mapping[str, Any] | None = None
    """Result of the gate, including every check; None without a gate."""
    webhook: str | None = None
    """`delivered`, or the reason why delivery failed; None if no webhook is configured."""

    @property
    def name(self) -> str:
        return f"run {self.run_id}"

    @property
    def path(self) -> str:
        """Path of the outcome's file in the store."""
        return get_outcome_path(self.run_id)

    def summarize(self) -> str:
        """Return the outcome in one line."""
        compared = f"since {self.compared_with}" if self.compared_with else f"not compared: {self.not_compared}"
        none = "no regression" if self.can_tell else "too few prompts to detect a regression"
        found = format_quantity(len(self.regressions), "regression") if self.regressions else none
        found += f" (not counted, as their settings differ: {format_names(self.unlike)})" if self.unlike else ""
        found += f" (left out: {format_quantity(self.edited, 'prompt')} with edited texts)" if self.edited else ""
        judged = f"; {self.gate['summary']}" if self.gate else ""
        return (
            f"{self.benchmark}, run {self.run_id}: {f'{found} {compared}' if self.compared_with else compared}; "
            f"coverage {self.counts['coverage']:.2%}{judged}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain values, for the file, standard output and the webhook."""
        return {"summary": self.summarize(), **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteOutcome:
    """Content of nightly.json in a suite's folder; the file exists once a nightly run has reported on the suite."""

    suite_id: str
    exit_code: int
    """Exit code of the nightly run that published the suite: the worst exit code of its benchmarks."""
    report: str
    runs: Mapping[str, str]
    """Run id of each benchmark, including runs that have not changed."""
    benchmarks: Sequence[NightOutcome]
    """Outcomes of runs that have not been reported before; their p-values are corrected jointly."""
    webhook: str | None = None
    """`delivered`, or the reason why delivery failed; None if no webhook is configured."""

    @property
    def name(self) -> str:
        return f"suite {self.suite_id}"

    @property
    def path(self) -> str:
        """Path of the outcome's file in the store."""
        return _make_suite_outcome_path(self.suite_id)

    def summarize(self) -> str:
        """Return the outcome in one line."""
        regressions = sum(len(outcome.regressions) for outcome in self.benchmarks)
        none = "no regression" if any(outcome.compared_with for outcome in self.benchmarks) else "nothing compared"
        found = format_quantity(regressions, "regression") if regressions else none
        new = f"{len(self.benchmarks)} with a new run" if self.benchmarks else "none with a new run"
        stopped = [outcome.benchmark for outcome in self.benchmarks if outcome.gate and not outcome.gate["passed"]]
        judged = f"; the gate failed on {format_names(stopped)}" if stopped else ""
        return f"suite {self.suite_id}: {format_quantity(len(self.runs), 'benchmark')}, {new}; {found}{judged}"

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain values, for the file, standard output and the webhook."""
        benchmarks = [outcome.to_json() for outcome in self.benchmarks]
        return {"summary": self.summarize(), **asdict(self), "benchmarks": benchmarks}


Outcome = TypeVar("Outcome", NightOutcome, SuiteOutcome)
_OUTCOME_ADAPTER = TypeAdapter(NightOutcome)
_SUITE_OUTCOME_ADAPTER = TypeAdapter(SuiteOutcome)


def read_outcome(store: Store, run_id: str) -> NightOutcome | None:
    """Return the reported outcome of a run; None if it was not reported or its file is damaged."""
    return _read_outcome_file(store, get_outcome_path(run_id), _OUTCOME_ADAPTER)


def read_suite_outcome(store: Store, suite_id: str) -> SuiteOutcome | None:
    """Return the reported outcome of a suite; None if it was not reported or its file is damaged."""
    return _read_outcome_file(store, _make_suite_outcome_path(suite_id), _SUITE_OUTCOME_ADAPTER)


def mark_reported(store: Store, outcome: SuiteOutcome) -> None:
    """Write the outcome of each new run in a suite to the run's folder, unless the file already exists.

    The run then counts as reported when its benchmark is swept alone, and later runs are compared with it.
    """
    for benchmark in outcome.benchmarks:
        if read_outcome(store, benchmark.run_id) is None:
            store.write_json(benchmark.path, replace(benchmark, webhook=outcome.webhook).to_json())


def _read_outcome_file(store: Store, path: str, adapter: TypeAdapter[Outcome]) -> Outcome | None:
    try:
        return adapter.validate_python(store.read_json(path) or {}, extra="ignore")
    except ValidationError:
        return None


def get_outcome_path(run_id: str) -> str:
    """Return the path of a run's outcome in the store."""
    return f"runs/{run_id}/nightly.json"


def _make_suite_outcome_path(suite_id: str) -> str:
    return f"{SUITES_FOLDER}/{suite_id}/nightly.json"


WEBHOOK_TIMEOUT = 10.0
"""Seconds allowed for each step of an attempt: connecting, sending, and receiving the response."""
RETRY_DELAYS_SECONDS = (1.0, 4.0, 16.0)
"""Seconds to wait before each retry."""


def post_json(
    url: str,
    message: Mapping[str, Any],
    *,
    seconds: float = WEBHOOK_TIMEOUT,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Post a message as JSON; return None if it is delivered, otherwise the reason for the failure.

    Temporary failures (a refused connection, 429, 5xx) are retried a few times. The reason names only the host, because
    the rest of the URL may be secret.
    """
    import httpx  # NightlyConfig has checked that it is installed

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the full URL of every request
    problem = None
    for delay in (0.0, *RETRY_DELAYS_SECONDS):
        if delay:
            pause(delay)
        try:
            with (
                httpx.Client(timeout=seconds, follow_redirects=False) as client,
                client.stream("POST", url, json=message) as response,  # the body of the response is not read
            ):
                status = response.status_code
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            problem = f"{urlsplit(url).hostname}: {type(error).__name__}"
            continue
        if 200 <= status < 300:
            return None
        problem = f"{urlsplit(url).hostname}: HTTP {status}"
        if status < 500 and status != 429:
            break
    return problem
