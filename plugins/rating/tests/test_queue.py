"""A queue can start with tasks about undecided pairs of generators, and stop when all pairs are decided."""

from collections import Counter

import numpy as np

from plugins.rating.tests.simulated import make_answer, make_likert_tasks
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.order import OrderParameters, RaterTurn
from plumbline.plugins.rating.queue import Queue, QueueOptions
from plumbline.plugins.rating.tasks import Task

MEAN_GRADES = {"best": 4.4, "close": 2.1, "last": 2.0}
LABELS_OPTIONS = QueueOptions("labels")
ORDER_PARAMETERS = OrderParameters(seed=0, raters=1, repeats=0.0)


def rate(queue: Queue, answers: list[Answer], limit: int) -> list[RaterTurn]:
    random, turns = np.random.default_rng(len(answers)), list[RaterTurn]()
    while len(turns) < limit and (asked := queue.choose_turns(answers, "ann", 1)):
        (turn,) = asked
        grade = int(np.clip(round(MEAN_GRADES[turn.task.generators[0]] + random.normal(0, 0.7)), 1, 5))
        answers.append(make_answer(turn.task, "ann", grade, place=len(answers)))
        turns.append(turn)
    return turns


def count_generators(turns: list[RaterTurn]) -> Counter[str]:
    return Counter(turn.task.generators[0] for turn in turns)


def test_only_a_labels_queue_moves_decided_pairs_to_the_end() -> None:
    tasks = make_likert_tasks(60, ("best", "close", "last"))
    answers: list[Answer] = []
    queue = Queue(tasks, ORDER_PARAMETERS, LABELS_OPTIONS)
    assert count_generators(rate(queue, answers, 72)).keys() == MEAN_GRADES.keys()
    assert [pair.better for pair in queue.evaluate(answers, growth=0).pairs["likert"]] == ["best", "best", None]
    later = rate(queue, answers, 40)
    assert count_generators(later).keys() == {"close", "last"}
    assert len(rate(queue, answers, 500)) == 180 - 72 - 40, "all remaining tasks are asked in the end"
    seeded = rate(Queue(tasks, ORDER_PARAMETERS), list(answers[:72]), 40)
    assert count_generators(seeded).keys() == MEAN_GRADES.keys()


def test_the_queue_stops_when_every_pair_is_decided_if_configured() -> None:
    tasks = make_likert_tasks(60, ("best", "last"))
    stopping, going_on = (
        Queue(tasks, ORDER_PARAMETERS, LABELS_OPTIONS._replace(stops=stops)) for stops in (True, False)
    )
    answers: list[Answer] = []
    assert 24 <= len(rate(stopping, answers, 500)) < 60, "at least 12 prompts of two generators are required"
    assert stopping.evaluate(answers).finished and stopping.list_open_tasks(answers, "bob") == []
    rate(going_on, answers, 500)
    assert len(answers) == 120


def test_pairs_are_not_evaluated_again_after_every_answer() -> None:
    tasks: list[Task] = make_likert_tasks(60, ("best", "last"))
    queue = Queue(tasks, ORDER_PARAMETERS, LABELS_OPTIONS)
    answers: list[Answer] = []
    rate(queue, answers, 20)
    assert queue.evaluate(answers).answers == 16 and queue.evaluate(answers, growth=0).answers == 20
