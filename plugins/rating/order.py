"""The order in which a rater gets a study's tasks: rounds that all raters share, each in an order of the rater's own.

Nothing is kept but the answers: all that is drawn is drawn again from the study's seed, so that a page that is opened
again and a second server ask the same.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from plumbline.operators.statistics.sequential import NOBODY, balanced_order
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.tasks import Task

APART = 20
"""A task comes again after at least so many others, so that it is rated and not remembered."""
GOLD_SHARE = 0.1
"""Of what a rater is asked, until all gold questions have been."""


class Turn(NamedTuple):
    """A task as a rater is asked it next."""

    task: Task
    repeat: int
    """How often this rater was asked it before."""
    shown: tuple[int, ...]
    """Its images by their places, from left to right."""


class Sequencing(NamedTuple):
    """What the order depends on besides the tasks."""

    seed: int
    raters: int
    """Answers wanted of each task, by as many raters."""
    repeats: float
    """Share of what a rater is asked that the rater was asked before."""


class Given:
    """What has been answered so far, and in what order each rater did."""

    def __init__(self, answers: Collection[Answer]) -> None:
        self.raters: dict[str, set[str]] = defaultdict(set)
        """By task, who has answered it."""
        self.turns: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """By rater, the tasks with their repeats."""
        for answer in sorted(answers, key=lambda answer: answer.at):
            self.add(answer.rater, answer.task_id, answer.repeat)

    def add(self, rater: str, task_id: str, repeat: int) -> None:
        self.raters[task_id].add(rater)
        self.turns[rater].append((task_id, repeat))


def rounds_of(tasks: Sequence[Task], seed: int) -> list[list[Task]]:
    """The tasks of every eight prompts, in a random order in which each round has of every skill its share.

    Gold questions are in none: they are mixed in.
    """
    by_prompt: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.gold is None:
            by_prompt[task.prompt_id].append(task)
    prompts = sorted(by_prompt)
    labels = ["\0".join(sorted(by_prompt[prompt][0].skills)) for prompt in prompts]
    looks = balanced_order(labels, seed).tolist()
    return [[task for place in look if place != NOBODY for task in by_prompt[prompts[place]]] for look in looks]


def put_first(rounds: Sequence[Sequence[Task]], urgent: Collection[str]) -> list[list[Task]]:
    """The rounds of the urgent tasks, by their ids, and then those of all others."""
    parts = ([task for task in part if (task.task_id in urgent) is first] for first in (True, False) for part in rounds)
    return [part for part in parts if part]


def next_turns(
    tasks: Sequence[Task],
    rounds: Sequence[Sequence[Task]],
    given: Given,
    rater: str,
    count: int,
    sequencing: Sequencing,
) -> list[Turn]:
    """What a rater is asked next, at most so many; none where every task has its answers or the rater gave one."""
    own = _Own(tasks, given, rater, sequencing)
    turns: list[Turn] = []
    for _ in range(count):
        ordinary = own.ordinary(rounds)
        if ordinary is None:
            break
        turn = own.turn(own.gold(ordinary.template) or own.repeat(ordinary.template) or (ordinary, 0))
        own.answered(turn)
        turns.append(turn)
    return turns


def tasks_left(rounds: Sequence[Sequence[Task]], given: Given, rater: str, raters: int) -> Iterator[Task]:
    """Tasks that want further answers, and this rater's among them."""
    for task in (task for part in rounds for task in part):
        if _is_open(given.raters.get(task.task_id, ()), rater, raters):
            yield task


def _is_open(answered_by: Collection[str], rater: str, raters: int) -> bool:
    return rater not in answered_by and len(answered_by) < raters


class _Own:
    """One rater's way through a study, as far as it has come, and as it would go on."""

    def __init__(self, tasks: Sequence[Task], given: Given, rater: str, sequencing: Sequencing) -> None:
        self.by_id = {task.task_id: task for task in tasks}
        self.gold_tasks = [task for task in tasks if task.gold is not None]
        self.given, self.rater, self.sequencing = given, rater, sequencing
        self.turns = list(given.turns.get(rater, ()))

    def ordinary(self, rounds: Sequence[Sequence[Task]]) -> Task | None:
        """The next task that still wants answers, of the first round that has any.

        Within a round the templates come one after the other, the last of a round first in the next.
        """
        seen = {task_id for task_id, _ in self.turns}
        for place, part in enumerate(rounds):
            is_open = [task for task in part if task.task_id not in seen and self._wants_answers(task)]
            if is_open:
                backwards = -1 if place % 2 else 1
                return min(
                    is_open,
                    key=lambda task: (backwards * self._draw("template", task.template), self._draw(task.task_id)),
                )
        return None

    def _wants_answers(self, task: Task) -> bool:
        return _is_open(self.given.raters.get(task.task_id, ()), self.rater, self.sequencing.raters)

    def gold(self, template: str) -> tuple[Task, int] | None:
        """A gold question of this template, where it is time for one."""
        seen = {task_id for task_id, _ in self.turns}
        asked = sum(task.task_id in seen for task in self.gold_tasks)
        is_open = [task for task in self.gold_tasks if task.template == template and task.task_id not in seen]
        if not is_open or asked >= self._due("gold", GOLD_SHARE, len(self.turns)):
            return None
        return min(is_open, key=lambda task: self._draw(task.task_id)), 0

    def repeat(self, template: str) -> tuple[Task, int] | None:
        """An earlier task of this template again, where it is time for one."""
        again = {task_id for task_id, repeat in self.turns if repeat}
        if len(again) >= self._due("repeat", self.sequencing.repeats, len(self.turns) - APART):
            return None
        earlier = (self.by_id.get(task_id) for task_id, _ in self.turns[: len(self.turns) - APART])
        able = [
            task
            for task in earlier
            if task is not None and task.gold is None and task.template == template and task.task_id not in again
        ]
        return (min(able, key=lambda task: self._draw("again", task.task_id)), 1) if able else None

    def _due(self, kind: str, share: float, turns: int) -> int:
        """How many of a kind are due after so many turns: one at a place drawn from each stretch of 1 / share turns."""
        if share <= 0 or turns < 0:
            return 0
        stretch = max(round(1 / share), 1)
        places = (start + int(stretch * self._draw(kind, start)) for start in range(0, turns + 1, stretch))
        return sum(place <= turns for place in places)

    def turn(self, asked: tuple[Task, int]) -> Turn:
        """The task with its images in the order in which this rater sees them."""
        task, repeat = asked
        return Turn(task, repeat, shown_order(self.sequencing.seed, self.rater, task, repeat))

    def answered(self, turn: Turn) -> None:
        """Goes on as if this had been answered."""
        self.turns.append((turn.task.task_id, turn.repeat))

    def _draw(self, *parts: object) -> float:
        return draw(self.sequencing.seed, self.rater, *parts)


def draw(*parts: object) -> float:
    """A random number in [0, 1), the same of the same parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def shown_order(seed: int, rater: str, task: Task, repeat: int) -> tuple[int, ...]:
    """The images of a task by their places, from left to right as a rater sees them."""
    places = range(len(task.image_ids))
    return tuple(sorted(places, key=lambda place: draw(seed, rater, "shown", task.task_id, repeat, place)))
