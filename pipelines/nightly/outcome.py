"""What came of a night: the file that says so, and the webhook that is told."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from plumbline.operators.sentences import plural
from plumbline.operators.summary import OVERALL
from plumbline.pipelines.cells.store import Store


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
    trends: str | None = None
    """The address of the page of trends; None where it could not be written."""
    webhook: str | None = None
    """`delivered`, or why not; None where none was asked for."""

    def summary(self) -> str:
        """In a line."""
        compared = f"since {self.compared_with}" if self.compared_with else f"not compared: {self.not_compared}"
        none = "no regression" if self.can_tell else "too few prompts to tell a regression"
        said = plural(len(self.regressions), "regression") if self.regressions else none
        return (
            f"{self.benchmark}, run {self.run_id}: {f'{said} {compared}' if self.compared_with else compared}; "
            f"coverage {self.counts['coverage']:.2%}"
        )

    def to_json(self) -> dict[str, Any]:
        """As it is written, printed and sent."""
        return {"summary": self.summary(), **asdict(self)}


_OUTCOME = TypeAdapter(NightOutcome)


def read_outcome(store: Store, run_id: str) -> NightOutcome | None:
    """What a night told of a run; None where none has, or its file was harmed."""
    values = store.read_json(outcome_path(run_id)) or {}
    try:
        return _OUTCOME.validate_python({key: value for key, value in values.items() if key != "summary"})
    except ValidationError:
        return None


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
