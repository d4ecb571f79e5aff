"""Each rater's tasks are in a random, balanced order with hidden repeats and gold questions."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

import pytest

from plugins.rating.tests.simulated import make_answer, make_likert_tasks, make_task
from plumbline.plugins.rating.order import (
    GOLD_TASK_SHARE,
    MIN_TASKS_BEFORE_REPEAT,
    History,
    OrderParameters,
    RaterTurn,
    choose_turns,
    find_open_tasks,
    make_rounds,
    move_urgent_tasks_first,
)
from plumbline.plugins.rating.tasks import Task

PLAIN_SEQUENCING = OrderParameters(seed=0, raters=3, repeats=0.0)


class Study:
    def __init__(self, tasks: Sequence[Task], sequencing: OrderParameters, urgent: Collection[str] = ()) -> None:
        self.tasks, self.sequencing = tasks, sequencing
        self.rounds = move_urgent_tasks_first(make_rounds(tasks, sequencing.seed), urgent)
        self.answers: list[tuple[str, RaterTurn]] = []

    def history(self) -> History:
        said = [(rater, turn, place) for place, (rater, turn) in enumerate(self.answers)]
        return History(
            [make_answer(turn.task, rater, 3, repeat=turn.repeat, place=place) for rater, turn, place in said]
        )

    def next(self, rater: str, count: int = 1) -> list[RaterTurn]:
        return choose_turns(self.tasks, self.rounds, self.history(), rater, count, self.sequencing)

    def rate(self, rater: str, limit: int = 1000) -> list[RaterTurn]:
        turns: list[RaterTurn] = []
        while len(turns) < limit and (asked := self.next(rater)):
            turns += asked
            self.answers += [(rater, turn) for turn in asked]
        return turns


def test_each_rater_gets_every_task_once_in_a_different_order() -> None:
    tasks = make_likert_tasks(20)
    study = Study(tasks, PLAIN_SEQUENCING)
    ann, bob = (study.rate(rater) for rater in ("ann", "bob"))
    assert sorted(turn.task.task_id for turn in ann) == sorted(task.task_id for task in tasks)
    assert {turn.task.task_id for turn in ann} == {turn.task.task_id for turn in bob} and ann != bob
    assert Study(tasks, PLAIN_SEQUENCING).rate("ann") == ann, "the order depends only on the seed and the rater"
    assert Study(tasks, PLAIN_SEQUENCING._replace(seed=1)).rate("ann") != ann


def test_the_next_tasks_do_not_depend_on_how_many_are_requested() -> None:
    study = Study(make_likert_tasks(20), PLAIN_SEQUENCING._replace(repeats=0.5))
    study.rate("ann", 25)
    ahead = study.next("ann", 6)
    assert study.rate("ann", 6) == ahead


def test_each_round_gets_exactly_its_answers_before_the_next_round_starts() -> None:
    """Four raters take turns, and each task needs two answers; a round starts when the earlier rounds are complete."""
    study = Study(make_likert_tasks(24), PLAIN_SEQUENCING._replace(raters=2))
    places = {task.task_id: place for place, part in enumerate(make_rounds(study.tasks, 0)) for task in part}
    asked: list[int] = []
    while any(turns := [turn for rater in "abcd" for turn in study.rate(rater, 1)]):
        asked += [places[turn.task.task_id] for turn in turns]
    assert asked == sorted(asked) and Counter(asked) == dict.fromkeys(range(3), 2 * 2 * 8)
    assert set(Counter(turn.task.task_id for _, turn in study.answers).values()) == {2}
    assert list(find_open_tasks(study.rounds, study.history(), "new", 2)) == []


def test_every_round_has_its_share_of_every_skill() -> None:
    for part in make_rounds(make_likert_tasks(24), 0):
        assert Counter(task.skills for task in part) == {("counting",): 8, ("colour",): 8}


def test_tasks_are_grouped_by_template_across_rounds() -> None:
    tasks = [
        make_task(template, f"p{place:02d}", (name,))
        for place in range(16) for name in ("atlas", "cobalt") for template in ("likert", "words", "questions")
    ]  # fmt: skip
    turns = Study(tasks, PLAIN_SEQUENCING).rate("ann")
    blocks = [(name, len(list(of))) for name, of in groupby(turn.task.template for turn in turns)]
    assert [count for _, count in blocks] == [16, 16, 32, 16, 16]
    assert blocks[0][0] == blocks[-1][0] and {name for name, _ in blocks[:3]} == {"likert", "words", "questions"}


def test_a_raters_tasks_are_repeated_once_some_time_later() -> None:
    study = Study(make_likert_tasks(60), PLAIN_SEQUENCING._replace(repeats=0.1))
    turns = study.rate("ann")
    again = [(place, turn.task.task_id) for place, turn in enumerate(turns) if turn.repeat]
    assert len(again) == pytest.approx(0.1 * (len(turns) - MIN_TASKS_BEFORE_REPEAT), abs=1.5)
    assert all(turn.repeat in (0, 1) for turn in turns) and len({task for _, task in again}) == len(again)
    first = {turn.task.task_id: place for place, turn in enumerate(turns) if not turn.repeat}
    assert all(place - first[task] >= MIN_TASKS_BEFORE_REPEAT for place, task in again)
    assert len({place % 10 for place, _ in again}) > 3, "raters cannot predict where repeats appear"
    assert not any(turn.repeat for turn in Study(make_likert_tasks(60), PLAIN_SEQUENCING).rate("ann"))


def test_gold_questions_are_mixed_in_and_each_rater_gets_all_of_them() -> None:
    tasks = make_likert_tasks(40)
    gold = [replace(task, gold=5) for task in tasks[:6]]
    study = Study([*gold, *tasks[6:]], PLAIN_SEQUENCING._replace(raters=1))
    ann = study.rate("ann", 70)
    places = [place for place, turn in enumerate(ann) if turn.task.gold is not None]
    assert len(places) == 6 and places[-1] < 6 / GOLD_TASK_SHARE and len({place % 10 for place in places}) > 2
    asked_of_bob = study.rate("bob")
    assert len(asked_of_bob) > 4, "every rater answers the gold questions, although other tasks need one answer"


def test_left_and_right_are_drawn_for_each_rater_task_and_repeat() -> None:
    tasks = [make_task("side_by_side", f"p{place:02d}", ("atlas", "cobalt")) for place in range(40)]
    study = Study(tasks, PLAIN_SEQUENCING)
    ann, bob = ({turn.task.task_id: turn.shown for turn in study.rate(rater)} for rater in ("ann", "bob"))
    assert 10 < sum(shown == (0, 1) for shown in ann.values()) < 30
    assert 10 < sum(ann[task] == bob[task] for task in ann) < 30


def test_urgent_tasks_come_first() -> None:
    tasks = make_likert_tasks(20)
    urgent = {task.task_id for task in tasks if task.generators == ("cobalt",)}
    turns = Study(tasks, PLAIN_SEQUENCING, urgent).rate("ann")
    assert {turn.task.task_id for turn in turns[:20]} == urgent and len(turns) == 40
