"""Gold questions of a study: tasks whose right answer is known, told from its table and found among the tasks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import names
from plumbline.plugins.rating.question_templates import TEMPLATES, Asked, what_is_wrong
from plumbline.plugins.rating.tasks import Task

COLUMNS = ("template", "prompt_id", "generator", "image_id", "generator_b", "image_id_b", "answer")
"""Of the table. An image is told by prompt_id and generator, or by image_id; the second one of two by the columns
that end in b."""


class Gold(NamedTuple):
    """A task whose right answer is known."""

    template: str
    prompt_id: str | None
    images: Sequence[tuple[str | None, str | None]]
    """Of each image, its generator and its image_id, one of which may be None."""
    answer: Any
    where: str
    """The file and row."""

    @property
    def names(self) -> set[str]:
        """The ids that say of which prompt it is: the prompt's or an image's."""
        return {name for name in (self.prompt_id, *(image_id for _, image_id in self.images)) if name is not None}

    def is_of(self, task: Task) -> bool:
        """Whether this is what a task asks."""
        if task.template != self.template or self.prompt_id not in (None, task.prompt_id):
            return False
        shown = zip(task.generators, task.image_ids, strict=True)
        return len(self.images) == len(task.image_ids) and all(
            generator in (None, its_generator) and image_id in (None, its_id)
            for (generator, image_id), (its_generator, its_id) in zip(self.images, shown, strict=True)
        )


def read_gold(row: Mapping[str, Any], where: str) -> Gold:
    """The gold question of a row; raises SourceError naming what is missing or wrong in it."""
    given = {name: None if row.get(name) in (None, "") else str(row[name]) for name in COLUMNS[:-1]}
    template = TEMPLATES.get(str(given["template"]))
    if template is None:
        raise SourceError(f"{where}: template: expected one of {', '.join(TEMPLATES)}, got {given['template']!r}")
    answer = _answer_of(row.get("answer"))
    if (problem := what_is_wrong(template, answer)) is not None:
        raise SourceError(f"{where}: {problem}")
    images = [(given[f"generator{side}"], given[f"image_id{side}"]) for side in ("", "_b")[: template.images]]
    if any(image == (None, None) for image in images):
        raise SourceError(
            f"{where}: expected prompt_id and generator, or image_id, of {template.images} images "
            "(the second in generator_b or image_id_b); add them"
        )
    return Gold(template.name, given["prompt_id"], images, answer, where)


def _answer_of(value: Any) -> Any:
    """An answer from a cell of a table, which may be JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def with_gold(tasks: Sequence[Task], gold: Iterable[Gold]) -> list[Task]:
    """The tasks, with the right answer of those that gold questions are of.

    Raises SourceError naming the row that no task is like, that several are like, or whose answer does not fit.
    """
    known = list(tasks)
    places: dict[tuple[str, str], list[int]] = {}
    for place, task in enumerate(known):
        for key in {(task.template, task.prompt_id), *((task.template, image_id) for image_id in task.image_ids)}:
            places.setdefault(key, []).append(place)
    for one in gold:
        key = (one.template, one.prompt_id or str(one.images[0][1]))
        alike = [place for place in places.get(key, ()) if one.is_of(known[place])]
        if len(alike) != 1:
            raise SourceError(
                f"{one.where}: {len(alike) or 'no'} tasks of the study are like this gold question, where one is "
                "expected; correct its prompt_id, generator and image_id, or add its template to templates"
            )
        (place,) = alike
        _check(one, known[place])
        known[place] = replace(known[place], gold=one.answer)
    return known


def _check(gold: Gold, task: Task) -> None:
    """Raises SourceError where the answer is about words or questions that the task does not have."""
    problem = what_is_wrong(TEMPLATES[task.template], gold.answer, Asked(words=len(task.words)))
    asked = [question.question_id for question in task.questions]
    strangers = [name for name in gold.answer if name not in asked] if gold.template == "questions" else []
    if strangers and isinstance(gold.answer, dict):
        problem = f"answer: the task asks {names(asked)}, and not {names(strangers)}"
    if problem is not None:
        raise SourceError(f"{gold.where}: {problem}")
