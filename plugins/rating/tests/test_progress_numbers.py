"""How far a study has come: whom people tell apart so far, what it still takes, and what to ask first for it."""

import math

import numpy as np
import pandas as pd
import pytest

from plugins.rating.tests.simulated import answer_to, likert_tasks, made_task
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import rated
from plumbline.plugins.rating.order import rounds_of
from plumbline.plugins.rating.progress import (
    Telling,
    all_decided,
    pair_progress,
    pairs_so_far,
    standings,
    template_progress,
    urgent_tasks,
)
from plumbline.plugins.rating.tasks import Task

GENERATORS = ("best", "close", "last")
MEANS = {"best": 4.4, "close": 2.1, "last": 2.0}
TELLING = Telling()


def graded(tasks: list[Task], raters: tuple[str, ...] = ("ann", "bob"), seconds: float = 6.0) -> list[Answer]:
    random = np.random.default_rng(0)
    return [
        answer_to(
            task, rater, int(np.clip(round(MEANS[task.generators[0]] + random.normal(0, 0.7)), 1, 5)), seconds=seconds
        )
        for task in tasks for rater in raters
    ]  # fmt: skip


def begun_study() -> tuple[list[Task], list[list[Task]], list[Answer]]:
    """100 prompts by three generators, of which two raters rated the first 40 of the order."""
    tasks = likert_tasks(100, GENERATORS)
    rounds = rounds_of(tasks, 0)
    return tasks, rounds, graded([task for part in rounds[:5] for task in part])


def test_a_clear_pair_is_told_apart_and_a_close_one_says_what_it_takes() -> None:
    tasks, _, answers = begun_study()
    study = rated(answers, tasks)
    pairs = pairs_so_far(study, None, TELLING)
    assert [(pair.a, pair.b, pair.better) for pair in pairs["likert"]] == [
        ("best", "close", "best"), ("best", "last", "best"), ("close", "last", None),
    ]  # fmt: skip
    best, *others = standings(pairs)
    assert best == ("likert", "best", pytest.approx(2.2, abs=0.3), ["close", "last"])
    assert [one.better_than for one in others] == [[], []] and others[0].difference > others[1].difference
    assert not all_decided(pairs) and all(pair.level == pytest.approx(1 - 0.05 / 3) for pair in pairs["likert"])
    (templates,) = template_progress(study, 3)
    assert templates == ("likert", 300, 900, 2 * 3 * 40, 6.0)
    clear, _, close = pair_progress(pairs, [templates], 3, TELLING)
    assert (clear.prompts, clear.minutes) == (0, 0)
    assert close.prompts is None and math.isnan(close.minutes), "all there are would not tell what hardly differs"


def test_minutes_are_of_all_raters_at_their_pace() -> None:
    """12 prompts are the fewest: 7 further ones of two images by three raters, each in 6 seconds."""
    tasks = likert_tasks(40, ("best", "last"))
    answers = graded(tasks[:10])
    study = rated(answers, tasks)
    (pair,) = pair_progress(pairs_so_far(study, None, TELLING), template_progress(study, 3), 3, TELLING)
    assert (pair.prompts, pair.minutes) == (7, 7 * 2 * 3 * 6 / 60)
    votes = [made_task("vote", f"p{place}", ("last", "best")) for place in range(40)]
    study = rated([answer_to(task, "ann", "b", seconds=6.0) for task in votes[:5]], votes)
    (pair,) = pair_progress(pairs_so_far(study, None, TELLING), template_progress(study, 3), 3, TELLING)
    assert (pair.prompts, pair.minutes) == (7, 7 * 3 * 6 / 60), "one task shows both"


def test_urgent_is_what_is_begun_and_the_next_of_pairs_that_are_not_decided() -> None:
    tasks, rounds, answers = begun_study()
    study = rated(answers, tasks)
    begun = {answer.task_id for answer in answers}
    by_id = {task.task_id: task for task in tasks}
    urgent = urgent_tasks(tasks, pairs_so_far(study, None, TELLING), rounds, begun, TELLING.chance)
    assert {by_id[task_id].generators for task_id in urgent} == {("close",), ("last",)}
    assert len(urgent) == 200, "all of them, where nothing less would do"
    few = graded([task for part in rounds[:1] for task in part])
    begun = {answer.task_id for answer in few}
    urgent = urgent_tasks(tasks, pairs_so_far(rated(few, tasks), None, TELLING), rounds, begun, TELLING.chance)
    first_rounds = {task.task_id for part in rounds[:2] for task in part}
    assert begun < urgent < first_rounds and len(urgent) == 3 * 12, "up to the fewest prompts, in the order of rounds"


def test_a_metric_that_knows_what_people_say_makes_each_answer_worth_more() -> None:
    tasks, _, answers = begun_study()
    study = rated(answers, tasks)
    random = np.random.default_rng(1)
    prompts = sorted({task.prompt_id for task in tasks})
    people = study.answers.assign(
        prompt_id=[by.prompt_id for by in answers], generator=[by.generators[0] for by in answers]
    )
    means = people.groupby(["prompt_id", "generator"])["number"].mean().unstack()
    scores = (means.reindex(prompts) + random.normal(0, 0.2, (100, 3))).fillna(
        pd.DataFrame(random.normal(3, 1, (100, 3)), index=prompts, columns=list(GENERATORS))
    )
    alone, beside = (pairs_so_far(study, by, TELLING)["likert"][2].found for by in (None, scores))
    assert alone is not None and beside is not None
    assert alone.worth == 1 and beside.worth > 1.2 and beside.error < alone.error


def test_where_every_pair_is_told_apart_all_is_decided_and_nothing_is_urgent() -> None:
    tasks = likert_tasks(40, ("best", "last"))
    answers = graded(tasks[:60])
    pairs = pairs_so_far(rated(answers, tasks), None, TELLING)
    assert all_decided(pairs)
    assert urgent_tasks(tasks, pairs, rounds_of(tasks, 0), {tasks[0].task_id}, TELLING.chance) == set()
    assert not all_decided(pairs_so_far(rated(answers[:20], tasks), None, TELLING)), "of five prompts nothing is said"
    assert not all_decided({}), "one generator alone is not compared"
