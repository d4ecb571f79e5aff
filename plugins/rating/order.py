"""Orders a study's tasks: all raters share the rounds, and each rater has their own order within a round.

All random choices depend only on the study's seed and the stored answers, so a reloaded page and a second server show
the same tasks.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from plumbline.operators.statistics.sequential import NO_PROMPT_INDEX, draw_balanced_order
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.tasks import Task

MIN_TASKS_BEFORE_REPEAT = 20
"""Minimum number of tasks between a task and its repeat, so that the rater does not remember the answer."""
GOLD_TASK_SHARE = 0.1
"""Fraction of a rater's tasks that are gold questions, until all gold questions have been asked."""


class RaterTurn(NamedTuple):
    """The next task to show to a rater."""

    task: Task
    repeat: int
    """Number of earlier answers to the task by this rater."""
    shown: tuple[int, ...]
    """Indices of the task's images from left to right."""


class OrderParameters(NamedTuple):
    """Parameters that determine the order of tasks."""

    seed: int
    raters: int
    """Number of raters who answer each task."""
    repeats: float
    """Fraction of tasks that are repeated."""


class History:
    """All answers, with the sequence of tasks that each rater answered."""

    def __init__(self, answers: Collection[Answer]) -> None:
        self.raters: dict[str, set[str]] = defaultdict(set)
        """Raters who answered each task, by task id."""
        self.turns: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """(task id, repeat) of each answer in order of time, by rater."""
        for answer in sorted(answers, key=lambda answer: answer.at):
            self.add(answer.rater, answer.task_id, answer.repeat)

    def add(self, rater: str, task_id: str, repeat: int) -> None:
        self.raters[task_id].add(rater)
        self.turns[rater].append((task_id, repeat))


def make_rounds(tasks: Sequence[Task], seed: int) -> list[list[Task]]:
    """Return the tasks in rounds of eight prompts, in a random order that spreads the skills evenly.

    Gold questions are left out; they are inserted later.
    """
    by_prompt: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.gold is None:
            by_prompt[task.prompt_id].append(task)
    prompts = sorted(by_prompt)
    labels = ["\0".join(sorted(by_prompt[prompt][0].skills)) for prompt in prompts]
    rounds = draw_balanced_order(labels, seed).tolist()
    return [
        [task for place in part if place != NO_PROMPT_INDEX for task in by_prompt[prompts[place]]] for part in rounds
    ]


def move_urgent_tasks_first(rounds: Sequence[Sequence[Task]], urgent: Collection[str]) -> list[list[Task]]:
    """Return the rounds of urgent tasks, followed by the rounds of all other tasks."""
    parts = ([task for task in part if (task.task_id in urgent) is first] for first in (True, False) for part in rounds)
    return [part for part in parts if part]


def choose_turns(
    tasks: Sequence[Task],
    rounds: Sequence[Sequence[Task]],
    history: History,
    rater: str,
    count: int,
    sequencing: OrderParameters,
) -> list[RaterTurn]:
    """Return a rater's next turns: `count`, or fewer if no other task needs an answer from this rater."""
    chooser = _TurnChooser(tasks, history, rater, sequencing)
    turns: list[RaterTurn] = []
    while len(turns) < count and (turn := chooser.choose(rounds)) is not None:
        turns.append(turn)
    return turns


def find_open_tasks(rounds: Sequence[Sequence[Task]], history: History, rater: str, raters: int) -> Iterator[Task]:
    """Yield the tasks that need an answer from this rater."""
    for task in (task for part in rounds for task in part):
        if _is_open(history.raters.get(task.task_id, ()), rater, raters):
            yield task


def _is_open(answered_by: Collection[str], rater: str, raters: int) -> bool:
    return rater not in answered_by and len(answered_by) < raters


class _TurnChooser:
    """State for choosing one rater's next turns. A chosen turn counts as answered when the following one is chosen."""

    def __init__(self, tasks: Sequence[Task], history: History, rater: str, sequencing: OrderParameters) -> None:
        self.by_id = {task.task_id: task for task in tasks}
        self.gold_tasks = [task for task in tasks if task.gold is not None]
        self.history, self.rater, self.sequencing = history, rater, sequencing
        self.turns = list(history.turns.get(rater, ()))

    def choose(self, rounds: Sequence[Sequence[Task]]) -> RaterTurn | None:
        """Return the next turn: a gold question or a repeat if one is due, otherwise an ordinary task; or None.

        Returns None if no ordinary task needs an answer from this rater.
        """
        ordinary = self._choose_ordinary_task(rounds)
        if ordinary is None:
            return None
        template = ordinary.template
        gold, repeated = self._choose_gold_task(template), None
        if gold is None:
            repeated = self._choose_repeated_task(template)
        task, repeat = gold or repeated or ordinary, int(repeated is not None)
        self.turns.append((task.task_id, repeat))
        return RaterTurn(task, repeat, draw_image_order(self.sequencing.seed, self.rater, task, repeat))

    def _choose_ordinary_task(self, rounds: Sequence[Sequence[Task]]) -> Task | None:
        """Return an unseen task that needs this rater's answer, from the first round that has any; otherwise None.

        Within a round, the tasks are in random order, grouped by template; every second round has the templates in
        reverse order.
        """
        seen = {task_id for task_id, _ in self.turns}
        raters = self.sequencing.raters
        for number, part in enumerate(rounds):
            open_tasks = [
                task
                for task in part
                if task.task_id not in seen and _is_open(self.history.raters.get(task.task_id, ()), self.rater, raters)
            ]
            if open_tasks:
                sign = -1 if number % 2 else 1
                return min(
                    open_tasks,
                    key=lambda task: (
                        sign * self._draw_fraction("template", task.template),
                        self._draw_fraction(task.task_id),
                    ),
                )
        return None

    def _choose_gold_task(self, template: str) -> Task | None:
        seen = {task_id for task_id, _ in self.turns}
        asked = sum(task.task_id in seen for task in self.gold_tasks)
        unseen = [task for task in self.gold_tasks if task.template == template and task.task_id not in seen]
        if not unseen or asked >= self._count_due_tasks("gold", GOLD_TASK_SHARE, len(self.turns)):
            return None
        return min(unseen, key=lambda task: self._draw_fraction(task.task_id))

    def _choose_repeated_task(self, template: str) -> Task | None:
        repeated = {task_id for task_id, repeat in self.turns if repeat}
        if len(repeated) >= self._count_due_tasks(
            "repeat", self.sequencing.repeats, len(self.turns) - MIN_TASKS_BEFORE_REPEAT
        ):
            return None
        earlier = (self.by_id.get(task_id) for task_id, _ in self.turns[: len(self.turns) - MIN_TASKS_BEFORE_REPEAT])
        candidates = [
            task
            for task in earlier
            if task is not None and task.gold is None and task.template == template and task.task_id not in repeated
        ]
        return min(candidates, key=lambda task: self._draw_fraction("again", task.task_id), default=None)

    def _count_due_tasks(self, kind: str, share: float, turns: int) -> int:
        """Return how many tasks of a kind are due after this number of turns.

        One task is due at a random turn in every 1 / share turns.
        """
        if share <= 0 or turns < 0:
            return 0
        stretch = max(round(1 / share), 1)
        places = (start + int(stretch * self._draw_fraction(kind, start)) for start in range(0, turns + 1, stretch))
        return sum(place <= turns for place in places)

    def _draw_fraction(self, *parts: object) -> float:
        return draw_fraction(self.sequencing.seed, self.rater, *parts)


def draw_fraction(*parts: object) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the arguments."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def draw_image_order(seed: int, rater: str, task: Task, repeat: int) -> tuple[int, ...]:
    """Return the indices of a task's images from left to right, in an order drawn at random."""
    indices = range(len(task.image_ids))
    return tuple(sorted(indices, key=lambda index: draw_fraction(seed, rater, "shown", task.task_id, repeat, index)))
