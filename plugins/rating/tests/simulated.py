"""Studies with simulated raters: tasks for a few generators, and answers by honest and random raters."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.tasks import ImageLocation, Task, TaskQuestion, hash_task

FIRST_ANSWER_TIME = datetime(2026, 1, 2, tzinfo=UTC)
Random = np.random.Generator
Rater = Callable[[Task, float, Random], Any]
"""Function that returns a rater's answer to a task, given the task's true value (mean 0, standard deviation 1)."""


def make_likert_tasks(prompts: int, generators: Sequence[str] = ("atlas", "cobalt")) -> list[Task]:
    return [
        make_task("likert", f"p{place:03d}", (name,), skills=("counting",) if place % 2 else ("colour",))
        for place in range(prompts)
        for name in generators
    ]


def make_task(template: str, prompt_id: str, generators: tuple[str, ...], **fields: Any) -> Task:
    image_ids, prompt = tuple(f"{prompt_id}/{name}" for name in generators), "a red cube"
    words = ("a", "red", "cube") if template == "words" else ()
    questions = (TaskQuestion("q1", "cube?"), TaskQuestion("q2", "red?")) if template == "questions" else ()
    task_id = hash_task(template, prompt_id, prompt, image_ids, generators, questions)
    return Task(
        task_id=task_id, template=template, prompt_id=prompt_id, prompt=prompt, image_ids=image_ids,
        generators=generators, words=words, questions=questions, places=tuple(ImageLocation("s", 0) for _ in image_ids),
        **fields,
    )  # fmt: skip


def make_answer(
    task: Task, rater: str, value: Any, *, seconds: float = 5.0, repeat: int = 0, place: int = 0, gold: Any = None
) -> Answer:
    return Answer(
        version=1, task_id=task.task_id, template=task.template, prompt_id=task.prompt_id, image_ids=task.image_ids,
        generators=task.generators, shown=tuple(range(len(task.image_ids))), repeat=repeat,
        gold=task.gold if gold is None else gold, rater=rater, answer=value, seconds=seconds,
        at=(FIRST_ANSWER_TIME + timedelta(seconds=10 * place)).isoformat(),
    )  # fmt: skip


def grade_honestly(task: Task, truth: float, random: Random) -> int:
    """Return the true value plus a random error, as a grade. Two such raters have a correlation of about 0.6."""
    return int(np.clip(round(3 + 1.2 * (truth + random.normal(0, 0.7))), 1, 5))


def grade_randomly(task: Task, truth: float, random: Random) -> int:
    return int(random.integers(1, 6))


def make_answers(tasks: Sequence[Task], raters: dict[str, Rater], seed: int, **fields: Any) -> list[Answer]:
    random = np.random.default_rng(seed)
    truths = random.normal(0, 1, len(tasks))
    return [
        make_answer(task, name, choose(task, float(truth), random), place=place, **fields)
        for name, choose in raters.items()
        for place, (task, truth) in enumerate(zip(tasks, truths, strict=True))
    ]
