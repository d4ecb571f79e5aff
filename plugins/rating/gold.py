"""Gold questions of a study: tasks with a known answer, read from a table."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import format_names
from plumbline.plugins.rating.question_templates import TEMPLATES, AnswerScope, find_problem
from plumbline.plugins.rating.tasks import Task

GOLD_COLUMNS = ("template", "prompt_id", "generator", "image_id", "generator_b", "image_id_b", "answer")
"""Columns of the table. An image is identified by prompt_id and generator, or by image_id; columns ending in b identify
the second image of a pair.
"""


class GoldQuestion(NamedTuple):
    """A gold question: a task with a known answer."""

    template: str
    prompt_id: str | None
    images: Sequence[tuple[str | None, str | None]]
    """Generator and image_id of each image; either may be None."""
    answer: Any
    where: str
    """Name of the file and row, for error messages."""

    @property
    def ids(self) -> set[str]:
        """The known ids of the prompt and the images."""
        return {name for name in (self.prompt_id, *(image_id for _, image_id in self.images)) if name is not None}

    def matches(self, task: Task) -> bool:
        """Return True if this gold question is about the task."""
        if task.template != self.template or self.prompt_id not in (None, task.prompt_id):
            return False
        shown = zip(task.generators, task.image_ids, strict=True)
        return len(self.images) == len(task.image_ids) and all(
            generator in (None, its_generator) and image_id in (None, its_id)
            for (generator, image_id), (its_generator, its_id) in zip(self.images, shown, strict=True)
        )


def parse_gold_question(row: Mapping[str, Any], where: str) -> GoldQuestion:
    """Return the gold question in a row of the table; raise SourceError with the problem if the row is not valid."""
    cells = {name: None if row.get(name) in (None, "") else str(row[name]) for name in GOLD_COLUMNS[:-1]}
    template = TEMPLATES.get(str(cells["template"]))
    if template is None:
        raise SourceError(
            f"{where}: template: expected one of {', '.join(TEMPLATES)}, got {cells['template']!r}; correct the file"
        )
    answer = row.get("answer")
    with suppress(ValueError):
        answer = json.loads(answer) if isinstance(answer, str) else answer
    if (problem := find_problem(template, answer)) is not None:
        raise SourceError(f"{where}: {problem}")
    images = [(cells[f"generator{side}"], cells[f"image_id{side}"]) for side in ("", "_b")[: template.images]]
    if any(image == (None, None) for image in images):
        raise SourceError(
            f"{where}: expected prompt_id and generator, or image_id, for each image (number of images: "
            f"{template.images}; the second is in generator_b or image_id_b); add them"
        )
    return GoldQuestion(template.name, cells["prompt_id"], images, answer, where)


def mark_gold_tasks(tasks: Sequence[Task], gold: Iterable[GoldQuestion]) -> list[Task]:
    """Return the tasks, adding the correct answer to each gold question among them.

    Raises SourceError if a row of the table matches no task or several tasks, or if its answer is not valid for the
    task.
    """
    result = list(tasks)
    indices: dict[tuple[str, str], list[int]] = {}
    for index, task in enumerate(result):
        for key in {(task.template, task.prompt_id), *((task.template, image_id) for image_id in task.image_ids)}:
            indices.setdefault(key, []).append(index)
    for question in gold:
        key = (question.template, question.prompt_id or str(question.images[0][1]))
        matching = [index for index in indices.get(key, ()) if question.matches(result[index])]
        if len(matching) != 1:
            raise SourceError(
                f"{question.where}: expected one task of the study that matches this gold question, found "
                f"{len(matching) or 'none'}; correct its prompt_id, generator and image_id, or add its template to "
                "templates"
            )
        (index,) = matching
        _check_answer(question, result[index])
        result[index] = replace(result[index], gold=question.answer)
    return result


def _check_answer(gold: GoldQuestion, task: Task) -> None:
    problem = find_problem(TEMPLATES[task.template], gold.answer, AnswerScope(words=len(task.words)))
    known = [question.question_id for question in task.questions]
    unknown = [name for name in gold.answer if name not in known] if gold.template == "questions" else []
    if unknown and isinstance(gold.answer, dict):
        problem = f"answer: expected questions among {format_names(known)}, got {format_names(unknown)}"
    if problem is not None:
        raise SourceError(f"{gold.where}: {problem}")
