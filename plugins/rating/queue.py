"""Chooses each rater's next tasks: in random order, or in an order that decides early which generators are better."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Literal, NamedTuple

import pandas as pd

from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import PairLabels
from plumbline.plugins.rating.numbers import StudyRatings, collect_ratings
from plumbline.plugins.rating.order import (
    History,
    OrderParameters,
    RaterTurn,
    choose_turns,
    find_open_tasks,
    make_rounds,
    move_urgent_tasks_first,
)
from plumbline.plugins.rating.progress import (
    ErrorProbabilities,
    are_all_decided,
    estimate_differences,
    find_urgent_tasks,
)
from plumbline.plugins.rating.tasks import Task

QueueOrder = Literal["seeded", "labels"]
MIN_ANSWER_GROWTH = 0.05
"""Minimum growth of the number of answers, as a fraction, before the pairs are evaluated again."""
MIN_NEW_ANSWERS = 8
"""Minimum number of new answers before the pairs are evaluated again."""


class QueueEvaluation(NamedTuple):
    """An evaluation of a study's answers at one point in time."""

    answers: int
    """Number of answers that were evaluated."""
    ratings: StudyRatings
    pairs: Mapping[str, Sequence[PairLabels]]
    """Pairs of generators by template."""
    rounds: Sequence[Sequence[Task]]
    """All tasks in rounds, the urgent ones first."""
    finished: bool
    """True if the study stops because every pair is decided."""


class MetricScores(NamedTuple):
    """A metric's scores, which are used to narrow the intervals of people's ratings."""

    metric: str
    scores: pd.DataFrame
    """Table of prompts x generators; higher is better."""


class QueueOptions(NamedTuple):
    """Options of a queue; by default, it contains all tasks in random order."""

    order: QueueOrder = "seeded"
    """`labels` first asks the tasks that are estimated to decide undecided pairs."""
    stops: bool = False
    """If True, stop when every pair is decided."""
    confidence: ErrorProbabilities = ErrorProbabilities()
    metric: MetricScores | None = None


SEEDED_ORDER = QueueOptions()


class Queue:
    """The tasks of a study, in an order that may depend on the answers."""

    def __init__(
        self, tasks: Sequence[Task], sequencing: OrderParameters, options: QueueOptions = SEEDED_ORDER
    ) -> None:
        self.tasks, self.sequencing, self.options = tasks, sequencing, options
        self._rounds = make_rounds(tasks, sequencing.seed)
        self._snapshot: QueueEvaluation | None = None
        self._lock = Lock()

    def restrict(self, tasks: Sequence[Task]) -> "Queue":
        """Return a queue of only these tasks."""
        return Queue(tasks, self.sequencing, self.options)

    def choose_turns(self, answers: Sequence[Answer], rater: str, count: int) -> list[RaterTurn]:
        """Return a rater's next turns; empty if the rater or the study is done."""
        rounds = self._order_rounds(answers)
        return choose_turns(self.tasks, rounds, History(answers), rater, count, self.sequencing)

    def list_open_tasks(self, answers: Sequence[Answer], rater: str) -> list[Task]:
        """Return the tasks that still need an answer from this rater, except gold questions and repeats."""
        rounds = self._order_rounds(answers)
        return list(find_open_tasks(rounds, History(answers), rater, self.sequencing.raters))

    def evaluate(self, answers: Sequence[Answer], growth: float = MIN_ANSWER_GROWTH) -> QueueEvaluation:
        """Evaluate the answers, or return the last evaluation if only a few answers are new.

        The answers are evaluated again if their number has grown by the fraction `growth` and by MIN_NEW_ANSWERS. If
        `growth` is 0, one new answer is enough.
        """
        with self._lock:
            last = self._snapshot
            new = len(answers) - (last.answers if last is not None else 0)
            if last is None or new < 0 or new >= max(growth * last.answers, MIN_NEW_ANSWERS if growth else 1):
                self._snapshot = last = self._evaluate(answers)
            return last

    def _order_rounds(self, answers: Sequence[Answer]) -> Sequence[Sequence[Task]]:
        if self.options.order == "seeded":
            return self._rounds
        snapshot = self.evaluate(answers)
        return () if snapshot.finished else snapshot.rounds

    def _evaluate(self, answers: Sequence[Answer]) -> QueueEvaluation:
        ratings = collect_ratings(answers, self.tasks)
        metric, confidence = self.options.metric, self.options.confidence
        pairs = estimate_differences(ratings, None if metric is None else metric.scores, confidence)
        started = set(ratings.answers["task_id"])
        urgent = find_urgent_tasks(self.tasks, pairs, self._rounds, started, confidence.chance)
        finished = self.options.order == "labels" and self.options.stops and are_all_decided(pairs)
        return QueueEvaluation(len(answers), ratings, pairs, move_urgent_tasks_first(self._rounds, urgent), finished)
