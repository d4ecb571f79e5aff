"""The tasks of a study: what is asked of which images, and where these are."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.schemas import TASKS
from plumbline.plugins.rating.question_templates import Asked


class TaskQuestion(NamedTuple):
    """A question that a task asks."""

    question_id: str
    text: str


class ImagePlace(NamedTuple):
    """Where an image is in the study's sources: its shard, among those of its generator, and its row there."""

    shard: str
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a rater is asked on one page; the fields are schemas.TASKS'."""

    task_id: str
    template: str
    prompt_id: str
    prompt: str
    skills: tuple[str, ...] = ()
    image_ids: tuple[str, ...]
    generators: tuple[str, ...]
    """Of the images, in their order."""
    words: tuple[str, ...] = ()
    """Of the prompt, where the template asks about them."""
    questions: tuple[TaskQuestion, ...] = ()
    gold: Any = None
    """The right answer, where it is known."""
    places: tuple[ImagePlace, ...]
    """Of the images, in their order."""

    @property
    def asked(self) -> Asked:
        """What an answer is held to."""
        return Asked(len(self.words), [question.question_id for question in self.questions])


def task_id_of(
    template: str,
    prompt_id: str,
    prompt: str,
    image_ids: Sequence[str],
    generators: Sequence[str],
    questions: Sequence[TaskQuestion],
) -> str:
    """A hash of all that a rater sees, so that a task which a new version of a study asks again keeps its answers."""
    seen = [template, prompt_id, prompt, list(image_ids), list(generators), [list(question) for question in questions]]
    return hashlib.sha256(json.dumps(seen, ensure_ascii=False).encode()).hexdigest()[:16]


def task_table(tasks: Sequence[Task]) -> pa.Table:
    """The tasks as a table, schema TASKS."""
    return rows.table([_row(task) for task in tasks], TASKS)


def _row(task: Task) -> dict[str, Any]:
    questions = [question._asdict() for question in task.questions]
    places = [place._asdict() for place in task.places]
    gold = None if task.gold is None else json.dumps(task.gold, ensure_ascii=False)
    return {**asdict(task), "questions": questions, "places": places, "gold": gold}


def tasks_of(table: pa.Table) -> list[Task]:
    """The tasks of a table, schema TASKS."""
    return [_task(row) for row in table.to_pylist()]


def _task(row: dict[str, Any]) -> Task:
    several = {name: tuple(row[name]) for name in ("skills", "image_ids", "generators", "words")}
    questions = tuple(TaskQuestion(**question) for question in row["questions"])
    places = tuple(ImagePlace(**place) for place in row["places"])
    gold = None if row["gold"] is None else json.loads(row["gold"])
    return Task(**{**row, **several, "questions": questions, "places": places, "gold": gold})
