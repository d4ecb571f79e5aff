"""Studies with simulated raters: tasks for a few generators, and answers by honest and random raters."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.tasks import ImagePlace, Task, TaskQuestion, task_id_of

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)
Random = np.random.Generator
Rater = Callable[[Task, float, Random], Any]
"""Returns a rater's answer to a task, given the task's true value (mean about 0, standard deviation 1)."""


def likert_tasks(prompts: int, generators: Sequence[str] = ("atlas", "cobalt")) -> list[Task]:
    return [
        make_task("likert", f"p{place:03d}", (name,), skills=("counting",) if place % 2 else ("colour",))
        for place in range(prompts)
        for name in generators
    ]


def make_task(template: str, prompt_id: str, generators: tuple[str, ...], **fields: Any) -> Task:
    image_ids, prompt = tuple(f"{prompt_id}/{name}" for name in generators), "a red cube"
    words = ("a", "red", "cube") if template == "words" else ()
    questions = (TaskQuestion("q1", "cube?"), TaskQuestion("q2", "red?")) if template == "questions" else ()
    task_id = task_id_of(template, prompt_id, prompt, image_ids, generators, questions)
    return Task(
        task_id=task_id, template=template, prompt_id=prompt_id, prompt=prompt, image_ids=image_ids,
        generators=generators, words=words, questions=questions, places=tuple(ImagePlace("s", 0) for _ in image_ids),
        **fields,
    )  # fmt: skip


def answer_to(
    task: Task, rater: str, said: Any, *, seconds: float = 5.0, repeat: int = 0, place: int = 0, gold: Any = None
) -> Answer:
    return Answer(
        version=1, task_id=task.task_id, template=task.template, prompt_id=task.prompt_id, image_ids=task.image_ids,
        generators=task.generators, shown=tuple(range(len(task.image_ids))), repeat=repeat,
        gold=task.gold if gold is None else gold, rater=rater, answer=said, seconds=seconds,
        at=(BEGAN + timedelta(seconds=10 * place)).isoformat(),
    )  # fmt: skip


def honest(task: Task, truth: float, random: Random) -> int:
    """Return a grade for the true value with this rater's error; two such raters have a correlation of about 0.6."""
    return int(np.clip(round(3 + 1.2 * (truth + random.normal(0, 0.7))), 1, 5))


def random_rater(task: Task, truth: float, random: Random) -> int:
    return int(random.integers(1, 6))


def answers_of(tasks: Sequence[Task], raters: dict[str, Rater], seed: int, **fields: Any) -> list[Answer]:
    """Return every rater's answer to every task."""
    random = np.random.default_rng(seed)
    truths = random.normal(0, 1, len(tasks))
    return [
        answer_to(task, name, says(task, float(truth), random), place=place, **fields)
        for name, says in raters.items()
        for place, (task, truth) in enumerate(zip(tasks, truths, strict=True))
    ]
