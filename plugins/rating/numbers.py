"""Converts people's answers to numbers: one per answer, and one per word or question in the answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.metaeval.judgement import compute_group_means
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import pivot_by_generator, subtract_pairs
from plumbline.plugins.rating.question_templates import TEMPLATES, UNIVERSAL_ANSWERS
from plumbline.plugins.rating.tasks import Task

SIDE_NUMBERS = {"a": 1.0, "tie": 0.0, "b": -1.0}
REPLY_NUMBERS = {"yes": 1.0, "no": 0.0}
MAX_GRADE_DIFFERENCE = 1
"""Largest difference at which two grades count as equal."""
PartNumbers = Mapping[str, float]
"""Numbers by word or question; the key is empty if the number is for the whole image or pair."""


def _convert_grade(answer: Any, task: Task) -> PartNumbers:
    """Return the grade; error counts are subtracted from the highest count, so that higher is better."""
    template = TEMPLATES[task.template]
    return {"": float(template.grades[-1] - answer if template.counts_errors else answer)}


def _convert_words(answer: Any, task: Task) -> PartNumbers:
    """Return 1 for each word that the image shows and 0 for each other word; unsure words are left out."""
    unsure, wrong = set(answer["unsure"]), set(answer["wrong"])
    return {str(word): float(word not in wrong) for word in range(len(task.words)) if word not in unsure}


def _convert_replies(answer: Any, task: Task) -> PartNumbers:
    return {question: REPLY_NUMBERS[reply] for question, reply in answer.items() if reply in REPLY_NUMBERS}


def _convert_side(answer: Any, task: Task) -> PartNumbers:
    return {"": SIDE_NUMBERS[answer]}


CONVERT_FUNCTIONS: Mapping[str, Callable[[Any, Task], PartNumbers]] = {
    **{name: _convert_grade for name, template in TEMPLATES.items() if template.grades},
    "words": _convert_words,
    "questions": _convert_replies,
    "side_by_side": _convert_side,
    "vote": _convert_side,
}
"""Functions by template that convert an answer to numbers. Higher means better, or that the first image is better."""


def convert_to_numbers(answer: Answer, task: Task) -> PartNumbers:
    """Convert an answer to numbers; return an empty mapping if the rater could not answer at all."""
    is_unsure = isinstance(answer.answer, str) and answer.answer in UNIVERSAL_ANSWERS
    return {} if is_unsure else CONVERT_FUNCTIONS[answer.template](answer.answer, task)


def is_correct(answer: Answer) -> bool:
    """Return True if an answer to a gold question is correct. Grades may differ by one, and `unsure` is incorrect."""
    return agrees_with(answer, answer.gold)


def agrees_with(answer: Answer, other: Any) -> bool:
    """Return True if two answers to the same task agree; grades may differ by one."""
    own = answer.answer
    if TEMPLATES[answer.template].grades and own not in UNIVERSAL_ANSWERS and other not in UNIVERSAL_ANSWERS:
        return bool(abs(own - other) <= MAX_GRADE_DIFFERENCE)
    if answer.template == "questions" and isinstance(own, dict) and isinstance(other, dict):
        return all(own.get(question) == reply for question, reply in other.items())
    return _serialize(own) == _serialize(other)


def _serialize(answer: Any) -> str:
    if isinstance(answer, dict):
        answer = {key: sorted(value) if isinstance(value, list) else value for key, value in answer.items()}
    return json.dumps(answer, sort_keys=True, ensure_ascii=False)


class StudyRatings(NamedTuple):
    """A study's answers as numbers, except answers to gold questions and repeats."""

    tasks: Sequence[Task]
    answers: pd.DataFrame
    """Table of answers: rater, task_id, template, number (mean of its parts; nan if unsure), answer (as a string),
    seconds (nan if unknown).
    """
    parts: pd.DataFrame
    """Table with a row per number in an answer: unit (the task_id and the word or question that the number is about),
    prompt_id, template, rater, rating.
    """


def collect_ratings(answers: Sequence[Answer], tasks: Sequence[Task]) -> StudyRatings:
    """Return the answers to these tasks as numbers, except answers to gold questions and repeats."""
    by_id = {task.task_id: task for task in tasks}
    rows, parts = [], []
    for answer in answers:
        if answer.gold is not None or answer.repeat or answer.task_id not in by_id:
            continue
        numbers = convert_to_numbers(answer, by_id[answer.task_id])
        number = fmean(numbers.values()) if numbers else np.nan
        seconds = np.nan if answer.seconds is None else answer.seconds
        rows.append((answer.rater, answer.task_id, answer.template, number, _serialize(answer.answer), seconds))
        for name, rating in numbers.items():
            parts.append((f"{answer.task_id} {name}", answer.prompt_id, answer.template, answer.rater, rating))
    return StudyRatings(
        tasks,
        pd.DataFrame(rows, columns=["rater", "task_id", "template", "number", "answer", "seconds"]),
        pd.DataFrame(parts, columns=["unit", "prompt_id", "template", "rater", "rating"]),
    )


def find_differences(ratings: StudyRatings, template: str) -> pd.DataFrame:
    """Return the mean rated difference between each pair of generators for a template: prompts x pairs, nan if unrated.

    The result contains all prompts and generators of the template's tasks, sorted.
    """
    tasks = [task for task in ratings.tasks if task.template == template and task.gold is None]
    means = compute_group_means(ratings.answers[ratings.answers["template"] == template], ["task_id"], "number")
    prompts = sorted({task.prompt_id for task in tasks})
    rows = [(task.prompt_id, *task.generators, means.get(task.task_id, np.nan)) for task in tasks]
    if TEMPLATES[template].images == 1:
        frame = pd.DataFrame(rows, columns=["prompt_id", "generator", "score"])
        generators = sorted(frame["generator"].unique())
        return subtract_pairs(pivot_by_generator(frame).reindex(index=prompts, columns=generators))
    ordered = [(prompt, a, b, score) if a < b else (prompt, b, a, -score) for prompt, a, b, score in rows]
    frame = pd.DataFrame(ordered, columns=["prompt_id", "a", "b", "score"])
    return compute_group_means(frame, ("prompt_id", "a", "b"), "score").unstack(["a", "b"]).reindex(index=prompts)
