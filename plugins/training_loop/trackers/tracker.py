"""Sends the results of a step to trackers. A tracker that fails or does not answer never stops the training."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Thread
from typing import NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base.errors import hide_secrets
from plumbline.pipelines.base.storage import get_first_line
from plumbline.plugins.training_loop.step_folder import WorstImage
from plumbline.plugins.training_loop.step_results import MetricResult, StepResult

LOG = logging.getLogger(__name__)
NAME_PREFIX = "plumbline"
"""First part of the names of all values."""
VERDICT_TEXT_NAME = f"{NAME_PREFIX}/verdicts"
"""Name of the text with a step's verdicts."""
VERDICT_VALUES = {"better": 1.0, "worse": -1.0, "no clear difference": 0.0, "too few prompts": 0.0}


class StepUpdate(NamedTuple):
    """Results of a step, in the form that is sent to trackers."""

    step: int
    values: Mapping[str, float]
    """Numbers by name, such as plumbline/vqascore/mean."""
    text: str
    """Results with their verdicts, one line per metric."""
    worst: Sequence[WorstImage]


class StepSender:
    """Base class of trackers that are selected by name."""

    def __init__(self, folder: str) -> None:
        """Store the address of the evaluation's folder, without connecting to a server yet."""
        self.folder = folder

    def find_run(self) -> None:
        """Find the run that the training loop has started; called in the loop's own thread before each step is sent."""

    def send(self, update: StepUpdate) -> None:
        """Send a step; called in a separate thread, which is abandoned if it takes too long."""
        raise NotImplementedError


@runtime_checkable
class LoopTracker(Protocol):
    """A tracker object from the training loop, such as an accelerate tracker or a W&B run."""

    def log(self, values: dict[str, float], step: int) -> object:
        """Log the values for a step."""


def list_values(result: StepResult) -> dict[str, float]:
    """Return a step's numbers by name. A verdict is 1 for better, -1 for worse and 0 for no clear difference."""
    return {
        f"{NAME_PREFIX}/{metric.metric}/{name}": value
        for metric in result.metrics
        for name, value in _list_metric_values(metric)
    }


def _list_metric_values(metric: MetricResult) -> Iterator[tuple[str, float]]:
    for name in ("mean", "low", "high"):
        if (value := getattr(metric, name)) is not None:
            yield name, value
    yield "coverage", metric.n / max(metric.n + metric.n_null, 1)
    for name, compared in (("previous", metric.previous), ("best", metric.best)):
        if compared is not None and compared.difference is not None:
            yield f"difference_from_{name}", compared.difference
            yield f"verdict_against_{name}", VERDICT_VALUES[compared.verdict]


class GuardedTracker:
    """Wrapper around a tracker that turns the tracker's failures into warnings."""

    def __init__(self, name: str, tracker: StepSender | LoopTracker, timeout: float) -> None:
        self.name, self.tracker, self.timeout = name, tracker, timeout
        self._thread: Thread | None = None

    def send(self, update: StepUpdate) -> None:
        """Send a step to the tracker; log a warning if sending fails or takes too long."""
        tracker = self.tracker
        if isinstance(tracker, StepSender):
            problem = self._call_within_limit(tracker, update)
        else:  # in this thread, because the trackers of a loop may belong to the thread
            problem = _call_and_describe_error(lambda: tracker.log(dict(update.values), step=update.step))
        if problem:
            LOG.warning(
                "tracker %s: step %d was not sent (%s); the folder still has its results",
                self.name,
                update.step,
                problem,
            )

    def _call_within_limit(self, tracker: StepSender, update: StepUpdate) -> str:
        if self._thread is not None and self._thread.is_alive():
            return "it has not answered an earlier step yet"
        if problem := _call_and_describe_error(tracker.find_run):
            return problem
        problems: list[str] = []
        self._thread = Thread(
            target=lambda: problems.append(_call_and_describe_error(lambda: tracker.send(update))), daemon=True
        )
        self._thread.start()
        self._thread.join(self.timeout)
        return problems[0] if problems else f"no answer within {self.timeout:g} seconds"


def _call_and_describe_error(call: Callable[[], object]) -> str:
    """Call a function; return its error in one line without secrets, or an empty string if it succeeded."""
    try:
        call()
    except Exception as error:  # whatever the tracker's own client raises
        return hide_secrets(f"{type(error).__name__}: {get_first_line(error)}")
    return ""
