"""What the raters of a study are asked next: by its seed alone, or first what would tell generators apart soonest."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Literal, NamedTuple

import pandas as pd

from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import PairLabels
from plumbline.plugins.rating.numbers import Rated, rated
from plumbline.plugins.rating.order import Given, Sequencing, Turn, next_turns, put_first, rounds_of, tasks_left
from plumbline.plugins.rating.progress import Telling, all_decided, pairs_so_far, urgent_tasks
from plumbline.plugins.rating.tasks import Task

Order = Literal["seeded", "labels"]
GROWTH = 0.05
"""Share by which the answers grow before the pairs are looked at again."""
FEWEST_NEW = 8
"""And at least by so many answers."""


class Look(NamedTuple):
    """What the answers said when they were last looked at."""

    answers: int
    """How many there were."""
    study: Rated
    pairs: Mapping[str, Sequence[PairLabels]]
    """By template."""
    rounds: Sequence[Sequence[Task]]
    """What is asked, in this order."""
    finished: bool
    """Whether nothing more is asked: every pair is told apart, and the study stops there."""


class Beside(NamedTuple):
    """A metric's scores that stand beside what people say."""

    metric: str
    scores: pd.DataFrame
    """Prompts x generators, more being better."""


class QueueOptions(NamedTuple):
    """What a queue does besides asking everything in a seeded order."""

    order: Order = "seeded"
    """`labels` asks first what tells generators apart soonest."""
    stops: bool = False
    """Whether nothing more is asked where every pair is told apart."""
    telling: Telling = Telling()
    beside: Beside | None = None


SEEDED = QueueOptions()


class Queue:
    """The tasks of a study in the order in which they are asked, as far as the answers so far decide it."""

    def __init__(self, tasks: Sequence[Task], sequencing: Sequencing, options: QueueOptions = SEEDED) -> None:
        self.tasks, self.sequencing, self.options = tasks, sequencing, options
        self._rounds = rounds_of(tasks, sequencing.seed)
        self._look: Look | None = None
        self._looking = Lock()

    def only(self, tasks: Sequence[Task]) -> "Queue":
        """The queue of some of the tasks."""
        return Queue(tasks, self.sequencing, self.options)

    def next(self, answers: Sequence[Answer], rater: str, count: int) -> list[Turn]:
        """What a rater is asked next; nothing where the rater or the study is done."""
        rounds = self._rounds_now(answers)
        return next_turns(self.tasks, rounds, Given(answers), rater, count, self.sequencing)

    def left(self, answers: Sequence[Answer], rater: str) -> list[Task]:
        """The tasks that still want this rater's answers, gold questions and repeats left out."""
        return list(tasks_left(self._rounds_now(answers), Given(answers), rater, self.sequencing.raters))

    def look(self, answers: Sequence[Answer], growth: float = GROWTH) -> Look:
        """What the answers say; looked at again where they have grown by this share since the last time."""
        with self._looking:
            last = self._look
            new = len(answers) - (last.answers if last is not None else 0)
            if last is None or new < 0 or new >= max(growth * last.answers, FEWEST_NEW if growth else 1):
                self._look = last = self._looked(answers)
            return last

    def _rounds_now(self, answers: Sequence[Answer]) -> Sequence[Sequence[Task]]:
        if self.options.order == "seeded":
            return self._rounds
        look = self.look(answers)
        return () if look.finished else look.rounds

    def _looked(self, answers: Sequence[Answer]) -> Look:
        study = rated(answers, self.tasks)
        beside, telling = self.options.beside, self.options.telling
        pairs = pairs_so_far(study, None if beside is None else beside.scores, telling)
        begun = set(study.answers["task_id"])
        urgent = urgent_tasks(self.tasks, pairs, self._rounds, begun, telling.chance)
        finished = self.options.order == "labels" and self.options.stops and all_decided(pairs)
        return Look(len(answers), study, pairs, put_first(self._rounds, urgent), finished)
