"""Answers of people as numbers: one for each answer, and one for each thing that it says something of."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.judging.judgement import group_means
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import by_generator, pair_differences
from plumbline.plugins.rating.question_templates import TEMPLATES, WHOLE
from plumbline.plugins.rating.tasks import Task

SIGNS = {"a": 1.0, "tie": 0.0, "b": -1.0}
REPLIED = {"yes": 1.0, "no": 0.0}
WITHIN = 1
"""A grade this far from another says the same."""
Parts = Mapping[str, float]


def _grade(answer: Any, task: Task) -> Parts:
    """Return the grade; a number of errors is subtracted from the highest one, so that more is better."""
    template = TEMPLATES[task.template]
    return {"": float(template.grades[-1] - answer if template.counts_errors else answer)}


def _words(answer: Any, task: Task) -> Parts:
    """Of every word of which the rater was sure, whether the image shows it."""
    unsure, wrong = set(answer["unsure"]), set(answer["wrong"])
    return {str(word): float(word not in wrong) for word in range(len(task.words)) if word not in unsure}


def _replies(answer: Any, task: Task) -> Parts:
    return {question: REPLIED[reply] for question, reply in answer.items() if reply in REPLIED}


def _side(answer: Any, task: Task) -> Parts:
    return {"": SIGNS[answer]}


PARTS: Mapping[str, Callable[[Any, Task], Parts]] = {
    **{name: _grade for name, template in TEMPLATES.items() if template.grades},
    "words": _words,
    "questions": _replies,
    "side_by_side": _side,
    "vote": _side,
}
"""By template, what an answer says of each thing that it is asked about, more being better for the first image."""


def parts_of(answer: Answer, task: Task) -> Parts:
    """What an answer says of each thing; nothing where the rater was unsure of all."""
    whole = isinstance(answer.answer, str) and answer.answer in WHOLE
    return {} if whole else PARTS[answer.template](answer.answer, task)


def is_right(answer: Answer) -> bool:
    """Whether an answer to a gold question is the right one: a grade may be one off, and to be unsure is not right."""
    return says_the_same(answer, answer.gold)


def says_the_same(answer: Answer, other: Any) -> bool:
    """Whether an answer says what another one to the same task does; grades may be one apart."""
    said = answer.answer
    if TEMPLATES[answer.template].grades and said not in WHOLE and other not in WHOLE:
        return bool(abs(said - other) <= WITHIN)
    if answer.template == "questions" and isinstance(said, dict) and isinstance(other, dict):
        return all(said.get(question) == reply for question, reply in other.items())
    return written(said) == written(other)


def written(answer: Any) -> str:
    """An answer as text, the same of all that say the same."""
    if isinstance(answer, dict):
        answer = {key: sorted(value) if isinstance(value, list) else value for key, value in answer.items()}
    return json.dumps(answer, sort_keys=True, ensure_ascii=False)


class Rated(NamedTuple):
    """A study's first answers to all but gold questions."""

    tasks: Sequence[Task]
    answers: pd.DataFrame
    """rater, task_id, template, number (mean over its parts; nan where unsure), said (text), seconds (nan of none)."""
    parts: pd.DataFrame
    """unit, prompt_id, template, rater, rating: each thing that was said."""


def rated(answers: Sequence[Answer], tasks: Sequence[Task]) -> Rated:
    """The answers that count as ratings; those to a task that is not among `tasks` are left out."""
    by_id = {task.task_id: task for task in tasks}
    counted = [one for one in answers if one.gold is None and not one.repeat and one.task_id in by_id]
    said = [(one, parts_of(one, by_id[one.task_id])) for one in counted]
    rows = [
        (one.rater, one.task_id, one.template, _mean(parts), written(one.answer), _timed(one)) for one, parts in said
    ]
    things = [
        (f"{one.task_id} {thing}", one.prompt_id, one.template, one.rater, rating)
        for one, parts in said
        for thing, rating in parts.items()
    ]
    return Rated(
        tasks,
        pd.DataFrame(rows, columns=["rater", "task_id", "template", "number", "said", "seconds"]),
        pd.DataFrame(things, columns=["unit", "prompt_id", "template", "rater", "rating"]),
    )


def _timed(answer: Answer) -> float:
    return np.nan if answer.seconds is None else answer.seconds


def _mean(parts: Parts) -> float:
    return fmean(parts.values()) if parts else np.nan


def pairs_rated(study: Rated, template: str) -> pd.DataFrame:
    """Return people's mean differences between every two generators by a template: prompts x pairs, nan if not rated.

    It contains all prompts and generators that the template asks about, sorted.
    """
    asked = [task for task in study.tasks if task.template == template and task.gold is None]
    means = group_means(study.answers[study.answers["template"] == template], ["task_id"], "number")
    prompts = sorted({task.prompt_id for task in asked})
    rows = [(task.prompt_id, *task.generators, means.get(task.task_id, np.nan)) for task in asked]
    if TEMPLATES[template].images == 1:
        frame = pd.DataFrame(rows, columns=["prompt_id", "generator", "score"])
        generators = sorted(frame["generator"].unique())
        return pair_differences(by_generator(frame).reindex(index=prompts, columns=generators))
    turned = [(prompt, a, b, score) if a < b else (prompt, b, a, -score) for prompt, a, b, score in rows]
    frame = pd.DataFrame(turned, columns=["prompt_id", "a", "b", "score"])
    return group_means(frame, ("prompt_id", "a", "b"), "score").unstack(["a", "b"]).reindex(index=prompts)
