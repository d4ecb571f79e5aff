"""Raters are flagged if their answers are unusual; agreement has an interval based on resampled prompts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from plugins.rating.tests.simulated import (
    Random,
    Rater,
    grade_honestly,
    grade_randomly,
    make_answer,
    make_answers,
    make_likert_tasks,
    make_task,
)
from plumbline.operators.statistics.options import Sampling
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import collect_ratings, convert_to_numbers, find_differences
from plumbline.plugins.rating.raters import HitCount, RaterQuality, find_agreement, judge_raters
from plumbline.plugins.rating.tasks import Task

HONEST_RATERS: dict[str, Rater] = {"ann": grade_honestly, "bob": grade_honestly, "cy": grade_honestly}
N_SEEDS = 40


def judge(answers: list[Answer], tasks: list[Task]) -> dict[str, RaterQuality]:
    return {quality.rater: quality for quality in judge_raters(collect_ratings(answers, tasks), answers)}


def test_random_raters_are_flagged_in_95_of_100_studies_and_honest_raters_in_at_most_5() -> None:
    """80 tasks are rated by three honest raters (any two correlate by about 0.6) and one who answers at random."""
    tasks, found, wronged = make_likert_tasks(40), 0, 0
    for seed in range(N_SEEDS):
        qualities = judge(make_answers(tasks, {**HONEST_RATERS, "zed": grade_randomly}, seed), tasks)
        found += any(flag.startswith("random: ") for flag in qualities["zed"].flags)
        wronged += any(qualities[name].flags for name in HONEST_RATERS)
    assert found >= 0.95 * N_SEEDS and wronged <= 0.05 * N_SEEDS


def test_nobody_is_flagged_as_random_with_too_few_answers_or_raters_who_disagree() -> None:
    few = make_likert_tasks(6)
    everybody = {**HONEST_RATERS, "zed": grade_randomly}
    assert not any(quality.flags for quality in judge(make_answers(few, everybody, 0), few).values())
    many = make_likert_tasks(40)
    nobody_looks = dict.fromkeys(everybody, grade_randomly)
    assert not any(quality.flags for quality in judge(make_answers(many, nobody_looks, 3), many).values())
    two = judge(make_answers(many, {"ann": grade_honestly, "zed": grade_randomly}, 0), many)
    assert all(quality.likeness.p_unlike == 1 and not quality.flags for quality in two.values()), (
        "two raters cannot show which of them answers randomly"
    )


def test_honest_raters_are_flagged_in_at_most_5_of_100_studies_if_answers_are_nearly_all_equal() -> None:
    """Each of the three raters grades 2 instead of 5 in 7% of the tasks."""

    def grade_mostly_5(task: Task, truth: float, random: Random) -> int:
        return 2 if random.random() < 0.07 else 5

    for prompts, studies in ((20, 60), (40, 60)):
        tasks = make_likert_tasks(prompts)
        named = sum(
            any(
                quality.flags
                for quality in judge(
                    make_answers(tasks, dict.fromkeys(HONEST_RATERS, grade_mostly_5), seed), tasks
                ).values()
            )
            for seed in range(studies)
        )
        assert named <= 0.05 * studies + 2


def grade_always_3(task: Task, truth: float, random: Random) -> int:
    return 3


def test_hasty_slow_constant_and_wrong_raters_are_flagged_with_numbers() -> None:
    tasks = make_likert_tasks(30)
    gold = [replace(task, task_id=f"{place:016x}", gold=1 + 4 * (place % 2)) for place, task in enumerate(tasks[:20])]
    answers = [
        *make_answers(tasks, HONEST_RATERS, 0),
        *make_answers(tasks, {"hal": grade_honestly}, 0, seconds=0.4),
        *make_answers(tasks, {"sue": grade_honestly}, 0, seconds=30.0),
        *make_answers(tasks, {"lou": grade_always_3}, 0),
        *(make_answer(task, name, task.gold) for task in gold for name in HONEST_RATERS),
        *(make_answer(task, "lou", 3) for task in gold),
    ]
    flags = {name: " | ".join(quality.flags) for name, quality in judge(answers, [*tasks, *gold]).items()}
    assert flags["ann"] == flags["bob"] == flags["cy"] == ""
    assert flags["hal"].startswith("hasty: 60 of 60 answers took less than 1 s; p = ")
    assert flags["sue"].startswith("slow: the median time per answer is 30 s, but 5 s for the others; p = ")
    assert "same: 60 of 60 answers to likert are 3, but only " in flags["lou"]
    assert "gold: correct on 0 of 20 (0% to 17%) gold questions, other raters on 60 of 60 (94% to 100%)" in flags["lou"]
    assert "random: " in flags["lou"], "constant answers are uncorrelated with the others"


def test_raters_without_times_are_neither_hasty_nor_slow() -> None:
    tasks = make_likert_tasks(30)
    untimed = [replace(answer, seconds=None) for answer in make_answers(tasks, {"cy": grade_honestly}, 0)]
    found = judge([*make_answers(tasks, {"ann": grade_honestly, "bob": grade_honestly}, 0), *untimed], tasks)
    assert found["cy"].fast.n == 0 and np.isnan(found["cy"].seconds)
    assert not any(quality.flags for quality in found.values())


def test_repeats_and_gold_are_counted_but_do_not_become_ratings() -> None:
    tasks = make_likert_tasks(10)
    golden = replace(tasks[0], gold=5)
    answers = [
        make_answer(tasks[1], "ann", 2), make_answer(tasks[1], "ann", 3, repeat=1, place=30),
        make_answer(tasks[2], "ann", 2), make_answer(tasks[2], "ann", 4, repeat=1, place=31),
        make_answer(golden, "ann", 4), make_answer(tasks[3], "ann", "unsure"),
    ]  # fmt: skip
    quality = judge(answers, [golden, *tasks[1:]])["ann"]
    assert (quality.answers, quality.unsure, quality.repeats, quality.gold) == (
        3,
        HitCount(1, 3),
        HitCount(1, 2),
        HitCount(1, 1),
    )
    assert str(HitCount(3, 4)) == "3 of 4 (19% to 99%)", "the interval is Clopper and Pearson's"
    assert quality.entropy == pytest.approx(math.log2(3) - 2 / 3), "two answers of 2, one unsure"


def test_answers_become_numbers_by_their_template() -> None:
    words, questions = (make_task(template, "p", ("atlas",)) for template in ("words", "questions"))
    assert convert_to_numbers(make_answer(words, "ann", {"wrong": [1], "unsure": [0]}), words) == {"1": 0.0, "2": 1.0}
    assert convert_to_numbers(make_answer(questions, "ann", {"q1": "yes", "q2": "unsure"}), questions) == {"q1": 1.0}
    assert convert_to_numbers(make_answer(questions, "ann", "cannot_tell"), questions) == {}


def test_pairs_are_rated_by_the_difference_of_images_or_by_the_choice_between_them() -> None:
    likert = [make_task("likert", "p1", (name,)) for name in ("b", "a")]
    votes = [make_task("vote", "p1", ("b", "a")), make_task("vote", "p2", ("a", "b"))]
    answers = [make_answer(likert[0], "ann", 5), make_answer(likert[1], "ann", 2), make_answer(likert[1], "bob", 3)]
    answers += [make_answer(votes[0], "ann", "a"), make_answer(votes[0], "bob", "tie")]
    study = collect_ratings(answers, [*likert, *votes])
    assert find_differences(study, "likert")["a", "b"].to_dict() == {"p1": -2.5}
    by_vote = find_differences(study, "vote")["a", "b"]
    assert by_vote["p1"] == -0.5 and np.isnan(by_vote["p2"])
    of_gold = [replace(task, gold="a") for task in votes]
    assert find_differences(collect_ratings(answers, of_gold), "vote").empty, (
        "answers to gold questions are not ratings"
    )


def test_alpha_of_grades_and_of_words_has_an_interval_over_prompts() -> None:
    tasks = make_likert_tasks(30)
    words = [make_task("words", f"p{place:03d}", ("atlas",)) for place in range(30)]
    answers = make_answers(tasks, HONEST_RATERS, 0)
    answers += [make_answer(task, name, {"wrong": [place % 3], "unsure": []})
                for place, task in enumerate(words) for name in HONEST_RATERS]  # fmt: skip
    likert, by_words = find_agreement(collect_ratings(answers, [*tasks, *words]), Sampling())
    assert (likert.template, by_words.template, by_words.alpha) == ("likert", "words", 1.0)
    assert likert.interval.low < likert.alpha < likert.interval.high
    assert math.isnan(by_words.interval.low), "without any disagreement the variance is unknown"
