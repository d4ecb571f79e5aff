"""The tasks of a study, and the table that stores them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.schemas import TASKS
from plumbline.plugins.rating.question_templates import AnswerScope


class TaskQuestion(NamedTuple):
    """One question of a task."""

    question_id: str
    text: str


class ImageLocation(NamedTuple):
    """Location of an image: the index of the shard among its generator's shards, and the row in the shard."""

    shard: str
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One page for a rater; its fields are those of schemas.TASKS."""

    task_id: str
    template: str
    prompt_id: str
    prompt: str
    skills: tuple[str, ...] = ()
    image_ids: tuple[str, ...]
    generators: tuple[str, ...]
    """Generator of each image."""
    words: tuple[str, ...] = ()
    """The prompt's words, if the template asks about them."""
    questions: tuple[TaskQuestion, ...] = ()
    gold: Any = None
    """The correct answer to a gold question."""
    places: tuple[ImageLocation, ...]
    """Location of each image."""

    @property
    def scope(self) -> AnswerScope:
        """The words and questions that an answer must cover."""
        return AnswerScope(len(self.words), [question.question_id for question in self.questions])


def hash_task(
    template: str,
    prompt_id: str,
    prompt: str,
    image_ids: Sequence[str],
    generators: Sequence[str],
    questions: Sequence[TaskQuestion],
) -> str:
    """Return a hash of everything that a rater sees, so that answers to unchanged tasks stay valid in new versions."""
    shown = [template, prompt_id, prompt, list(image_ids), list(generators), [list(question) for question in questions]]
    return hashlib.sha256(json.dumps(shown, ensure_ascii=False).encode()).hexdigest()[:16]


def encode_tasks(tasks: Sequence[Task]) -> pa.Table:
    """Return the tasks as a table (schema TASKS)."""
    return rows.table([_encode_task(task) for task in tasks], TASKS)


def _encode_task(task: Task) -> dict[str, Any]:
    questions = [question._asdict() for question in task.questions]
    places = [place._asdict() for place in task.places]
    gold = None if task.gold is None else json.dumps(task.gold, ensure_ascii=False)
    return {**asdict(task), "questions": questions, "places": places, "gold": gold}


def decode_tasks(table: pa.Table) -> list[Task]:
    """Return the tasks in a table (schema TASKS)."""
    return [_decode_task(row) for row in table.to_pylist()]


def _decode_task(row: dict[str, Any]) -> Task:
    lists = {name: tuple(row[name]) for name in ("skills", "image_ids", "generators", "words")}
    questions = tuple(TaskQuestion(**question) for question in row["questions"])
    places = tuple(ImageLocation(**place) for place in row["places"])
    gold = None if row["gold"] is None else json.loads(row["gold"])
    return Task(**{**row, **lists, "questions": questions, "places": places, "gold": gold})
