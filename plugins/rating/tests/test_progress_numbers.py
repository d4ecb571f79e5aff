"""A study's progress reports decided pairs of generators, the remaining effort, and the most urgent tasks."""

import math

import numpy as np
import pandas as pd
import pytest

from plugins.rating.tests.simulated import make_answer, make_likert_tasks, make_task
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import collect_ratings
from plumbline.plugins.rating.order import make_rounds
from plumbline.plugins.rating.progress import (
    ErrorProbabilities,
    are_all_decided,
    estimate_differences,
    find_pair_progress,
    find_template_progress,
    find_urgent_tasks,
    rank_generators,
)
from plumbline.plugins.rating.tasks import Task

GENERATORS = ("best", "close", "last")
MEAN_GRADES = {"best": 4.4, "close": 2.1, "last": 2.0}
CONFIDENCE = ErrorProbabilities()


def grade_tasks(tasks: list[Task], raters: tuple[str, ...] = ("ann", "bob"), seconds: float = 6.0) -> list[Answer]:
    random = np.random.default_rng(0)
    return [
        make_answer(
            task,
            rater,
            int(np.clip(round(MEAN_GRADES[task.generators[0]] + random.normal(0, 0.7)), 1, 5)),
            seconds=seconds,
        )
        for task in tasks for rater in raters
    ]  # fmt: skip


def make_started_study() -> tuple[list[Task], list[list[Task]], list[Answer]]:
    """Return a study's tasks, rounds and answers: two raters have rated the first 40 of 100 prompts.

    The study has three generators.
    """
    tasks = make_likert_tasks(100, GENERATORS)
    rounds = make_rounds(tasks, 0)
    return tasks, rounds, grade_tasks([task for part in rounds[:5] for task in part])


def test_a_clear_pair_is_decided_and_a_close_pair_has_an_estimated_cost() -> None:
    tasks, _, answers = make_started_study()
    study = collect_ratings(answers, tasks)
    pairs = estimate_differences(study, None, CONFIDENCE)
    assert [(pair.a, pair.b, pair.better) for pair in pairs["likert"]] == [
        ("best", "close", "best"), ("best", "last", "best"), ("close", "last", None),
    ]  # fmt: skip
    best, *others = rank_generators(pairs)
    assert best == ("likert", "best", pytest.approx(2.2, abs=0.3), ["close", "last"])
    assert [one.better_than for one in others] == [[], []] and others[0].difference > others[1].difference
    assert not are_all_decided(pairs) and all(pair.level == pytest.approx(1 - 0.05 / 3) for pair in pairs["likert"])
    (templates,) = find_template_progress(study, 3)
    assert templates == ("likert", 300, 900, 2 * 3 * 40, 6.0)
    clear, _, close = find_pair_progress(pairs, [templates], 3, CONFIDENCE)
    assert (clear.prompts, clear.minutes) == (0, 0)
    assert close.prompts is None and math.isnan(close.minutes), (
        "all prompts are too few for generators that hardly differ"
    )


def test_minutes_are_the_total_time_of_all_raters() -> None:
    """An estimated 7 more prompts are needed. Three raters grade their 14 images in 6 seconds each: 252 seconds in all.

    A vote is about both images of a prompt, so votes take half as long.
    """
    tasks = make_likert_tasks(40, ("best", "last"))
    answers = grade_tasks(tasks[:10])
    study = collect_ratings(answers, tasks)
    (pair,) = find_pair_progress(
        estimate_differences(study, None, CONFIDENCE), find_template_progress(study, 3), 3, CONFIDENCE
    )
    assert (pair.prompts, pair.minutes) == (7, 7 * 2 * 3 * 6 / 60)
    votes = [make_task("vote", f"p{place}", ("last", "best")) for place in range(40)]
    study = collect_ratings([make_answer(task, "ann", "b", seconds=6.0) for task in votes[:5]], votes)
    (pair,) = find_pair_progress(
        estimate_differences(study, None, CONFIDENCE), find_template_progress(study, 3), 3, CONFIDENCE
    )
    assert (pair.prompts, pair.minutes) == (7, 7 * 3 * 6 / 60), "one task shows both images"


def test_urgent_tasks_are_started_tasks_and_the_next_tasks_of_undecided_pairs() -> None:
    tasks, rounds, answers = make_started_study()
    study = collect_ratings(answers, tasks)
    begun = {answer.task_id for answer in answers}
    by_id = {task.task_id: task for task in tasks}
    urgent = find_urgent_tasks(tasks, estimate_differences(study, None, CONFIDENCE), rounds, begun, CONFIDENCE.chance)
    assert {by_id[task_id].generators for task_id in urgent} == {("close",), ("last",)}
    assert len(urgent) == 200, "all tasks are needed"
    few = grade_tasks([task for part in rounds[:1] for task in part])
    begun = {answer.task_id for answer in few}
    urgent = find_urgent_tasks(
        tasks, estimate_differences(collect_ratings(few, tasks), None, CONFIDENCE), rounds, begun, CONFIDENCE.chance
    )
    first_rounds = {task.task_id for part in rounds[:2] for task in part}
    assert begun < urgent < first_rounds and len(urgent) == 3 * 12, (
        "tasks are added in the order of rounds up to the minimum number of prompts"
    )


def test_a_metric_that_agrees_with_people_makes_each_answer_more_informative() -> None:
    tasks, _, answers = make_started_study()
    study = collect_ratings(answers, tasks)
    random = np.random.default_rng(1)
    prompts = sorted({task.prompt_id for task in tasks})
    people = study.answers.assign(
        prompt_id=[by.prompt_id for by in answers], generator=[by.generators[0] for by in answers]
    )
    means = people.groupby(["prompt_id", "generator"])["number"].mean().unstack()
    scores = (means.reindex(prompts) + random.normal(0, 0.2, (100, 3))).fillna(
        pd.DataFrame(random.normal(3, 1, (100, 3)), index=prompts, columns=list(GENERATORS))
    )
    alone, beside = (estimate_differences(study, by, CONFIDENCE)["likert"][2].estimate for by in (None, scores))
    assert alone is not None and beside is not None
    assert alone.worth == 1 and beside.worth > 1.2 and beside.error < alone.error


def test_nothing_is_urgent_once_every_pair_is_decided() -> None:
    tasks = make_likert_tasks(40, ("best", "last"))
    answers = grade_tasks(tasks[:60])
    pairs = estimate_differences(collect_ratings(answers, tasks), None, CONFIDENCE)
    assert are_all_decided(pairs)
    assert find_urgent_tasks(tasks, pairs, make_rounds(tasks, 0), {tasks[0].task_id}, CONFIDENCE.chance) == set()
    assert not are_all_decided(estimate_differences(collect_ratings(answers[:20], tasks), None, CONFIDENCE)), (
        "five prompts are too few to decide"
    )
    assert not are_all_decided({}), "a single generator has no pairs"
