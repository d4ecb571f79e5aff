"""Exports a study's tasks to Label Studio or Argilla, and imports the answers."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from xml.etree import ElementTree

from pydantic import ValidationError

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import split_words
from plumbline.pipelines.web.page_input import BadNameError, clean_name
from plumbline.plugins.rating.annotations import Annotation, read_export
from plumbline.plugins.rating.answers import MAX_NOTE_CHARACTERS, Answer
from plumbline.plugins.rating.question_templates import (
    CANNOT_TELL,
    QUESTION_REPLIES,
    TEMPLATES,
    UNIVERSAL_ANSWERS,
    UNSURE,
    WORD_MARKS,
    find_problem,
)
from plumbline.plugins.rating.rate_config import ToolName
from plumbline.plugins.rating.study import Study
from plumbline.plugins.rating.task_images import TaskImages
from plumbline.plugins.rating.tasks import Task

MARKED_CHOICE = "marked"
GRADED_TEMPLATES = {name: template for name, template in TEMPLATES.items() if template.grades}
CHOICES_BY_TEMPLATE: Mapping[str, Sequence[str]] = {
    **{name: list(map(str, template.grades)) for name, template in GRADED_TEMPLATES.items()},
    "words": [MARKED_CHOICE],
    "questions": [reply for reply in QUESTION_REPLIES if reply not in UNIVERSAL_ANSWERS],
    "side_by_side": ["left", "right", "tie"],
    "vote": ["left", "right", "tie"],
}
"""Choices that each template offers, except `unsure` and `cannot tell`."""
CHOICE_LABELS = {CANNOT_TELL: "cannot tell"}
MARKED_WORDS_QUESTION = "wrong_words"
"""Name of the question that asks for marked words, in addition to the main question."""
NOTE_QUESTION = "note"
"""Name of the question that asks for a note, in addition to the main question."""
IMAGE_FIELDS = ("source", "image", "left", "right")
SHOWN_FIELDS = ("prompt", "question", *IMAGE_FIELDS)
"""Record fields that are shown to raters, in order."""
MAX_FILE_CHARACTERS = 50_000_000
"""Number of characters after which a new task file is started."""
HINT_BY_TEMPLATE = {
    "words": f'Mark the words, then choose "{MARKED_CHOICE}", even if no word is wrong.',
    **{
        name: ", ".join(f"{grade}: {anchor.rstrip('.')}" for grade, anchor in template.anchors.items())
        for name, template in GRADED_TEMPLATES.items()
        if template.anchors
    },
}
"""Hints shown below the question, by template."""


class ExportedFiles(NamedTuple):
    """Files written by an export."""

    files: Sequence[Place]
    notes: Sequence[str]
    """Descriptions of omitted tasks and images."""


def export_tasks(study: Study, name: ToolName, raters: int) -> ExportedFiles:
    """Write the tasks and images of each template as files for an annotation tool, with the tool's configuration.

    The files are written to exports/TOOL in the study's folder. They contain no generators, image ids or correct
    answers; answers are matched to tasks by `task_id`.
    """
    tool, folder, files, notes = TOOLS[name], study.place / f"exports/{name}", list[Place](), list[str]()
    all_tasks = list(study.served.tasks.values())
    for template in dict.fromkeys(task.template for task in all_tasks):
        tasks = [task for task in all_tasks if task.template == template]
        for number, part in enumerate(_split_records(_make_records(tasks, study.served.images, notes))):
            records = [tool.make_record(record, [name for name in SHOWN_FIELDS if name in record]) for record in part]
            files.append(folder / f"{template}.{number}.json")
            files[-1].write(json.dumps(records).encode())
            if number == 0:
                shown = [name for name in SHOWN_FIELDS if name in part[0]]
                files.append(folder / f"{template}.{tool.suffix}")
                files[-1].write(tool.configure(template, shown, raters).encode())
    return ExportedFiles(files, notes)


def _split_records(records: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """Split the records into lists of about MAX_FILE_CHARACTERS characters, small enough for the tools to import."""
    part, size = list[dict[str, str]](), 0
    for record in records:
        part.append(record)
        size += sum(map(len, record.values()))
        if size >= MAX_FILE_CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _make_records(tasks: Iterable[Task], task_images: TaskImages, notes: list[str]) -> Iterator[dict[str, str]]:
    """Yield a record of plain fields for each task, or for each question if the task has several.

    Descriptions of omitted tasks and images are appended to `notes`.
    """
    for task in tasks:
        names = ("image",) if len(task.places) == 1 else ("left", "right")
        images = [task_images.read_image(task, index) for index in _order_images(task)]
        sources = task_images.read_sources(task)
        problem = next((image.message for image in (*images, *sources) if isinstance(image, RowError)), None)
        if problem is not None:
            notes.append(f"task {task.task_id} is left out because an image is missing: {problem}")
            continue
        if len(sources) > 1:
            notes.append(f"task {task.task_id} shows the first of its {len(sources)} sources")
        shown = zip(("source",) * len(sources[:1]) + names, (*sources[:1], *images), strict=True)
        uris = {
            name: f"data:image/webp;base64,{base64.b64encode(image).decode()}"
            for name, image in shown
            if isinstance(image, bytes)
        }
        record = {"task_id": task.task_id, "prompt": task.prompt, **uris}
        questions = [{"question_id": question.question_id, "question": question.text} for question in task.questions]
        yield from ({**record, **question} for question in questions or [{}])


def _order_images(task: Task) -> tuple[int, ...]:
    """Return the indices of a task's images from left to right, derived from the task's id (a hash)."""
    indices = tuple(range(len(task.places)))
    return indices[::-1] if int(task.task_id, 16) % 2 else indices


def _list_choices(template: str) -> list[str]:
    return [*CHOICES_BY_TEMPLATE[template], *(CHOICE_LABELS.get(name, name) for name in UNIVERSAL_ANSWERS)]


def _configure_label_studio(template: str, shown: Sequence[str], raters: int) -> str:
    view = ElementTree.Element("View")
    for text in (TEMPLATES[template].question, *filter(None, [HINT_BY_TEMPLATE.get(template)])):
        ElementTree.SubElement(view, "Header", value=text)
    for name in shown:
        ElementTree.SubElement(view, "Image" if name in IMAGE_FIELDS else "Text", name=name, value=f"${name}")
    if template == "words":
        labels = ElementTree.SubElement(view, "Labels", name=MARKED_WORDS_QUESTION, toName="prompt")
        for mark in WORD_MARKS:
            ElementTree.SubElement(labels, "Label", value=mark)
    about, options = shown[-1], {"choice": "single-radio", "required": "true", "showInline": "true"}
    choices = ElementTree.SubElement(view, "Choices", {"name": template, "toName": about, **options})
    for choice in _list_choices(template):
        ElementTree.SubElement(choices, "Choice", value=choice)
    ElementTree.SubElement(view, "TextArea", name=NOTE_QUESTION, toName=about, placeholder="a note")
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode")


def _configure_argilla(template: str, shown: Sequence[str], raters: int) -> str:
    fields = [{"name": name, "settings": {"type": "image" if name in IMAGE_FIELDS else "text"}} for name in shown]
    choices: dict[str, Any] = {"type": "label_selection", "options": _list_options(_list_choices(template))}
    questions = [{"name": template, "title": TEMPLATES[template].question, "required": True, "settings": choices}]
    if template == "words":
        marks = {"type": "span", "field": "prompt", "options": _list_options(WORD_MARKS)}
        questions.append({"name": MARKED_WORDS_QUESTION, "required": False, "settings": marks})
    questions.append({"name": NOTE_QUESTION, "required": False, "settings": {"type": "text"}})
    settings = {
        "guidelines": HINT_BY_TEMPLATE.get(template),
        "fields": fields,
        "questions": questions,
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": raters},
    }
    return json.dumps(settings, indent=1)


def _make_argilla_record(record: Mapping[str, str], shown: Sequence[str]) -> dict[str, Any]:
    ids = {name: record[name] for name in ("task_id", "question_id") if name in record}
    empty: dict[str, Any] = {name: {} for name in ("suggestions", "responses", "vectors")}
    return {"id": "/".join(ids.values()), "fields": {name: record[name] for name in shown}, "metadata": ids, **empty}


def _list_options(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"value": name, "text": name} for name in names]


class AnnotationTool(NamedTuple):
    """An annotation tool that studies can be exported to."""

    make_record: Callable[[Mapping[str, str], Sequence[str]], dict[str, Any]]
    """Function that returns a record in the tool's format; the second argument names the fields to show."""
    configure: Callable[[str, Sequence[str], int], str]
    """Function that returns the tool's configuration for a template, the fields to show, and the raters per task."""
    suffix: str
    """Suffix of the configuration file."""


TOOLS: Mapping[ToolName, AnnotationTool] = {
    "label_studio": AnnotationTool(lambda record, shown: {"data": record}, _configure_label_studio, "xml"),
    "argilla": AnnotationTool(_make_argilla_record, _configure_argilla, "settings.json"),
}


class ImportCounts(NamedTuple):
    """Numbers of imported answers that were new to the study or already known, and notes on the import."""

    kept: int
    known: int
    """Number of imported answers that the study already contained."""
    notes: Sequence[str]


def import_answers(study: Study, export: Place) -> ImportCounts:
    """Add the answers from a tool's export to the study, and count them; a changed answer becomes the next revision.

    Incomplete answers, and answers to tasks that are not in the study's current version, are left out with a note.
    Raises SourceError before anything is added if a record has no task_id, or if a person's name or a complete answer
    is not valid.
    """
    annotations, notes = read_export(export)
    by_task: dict[tuple[str, str], list[Annotation]] = {}
    for annotation in annotations:
        if "task_id" not in annotation.fields:
            raise SourceError(
                f"{annotation.where}: expected the task_id of a task exported with export_to=, found none; to use "
                "ratings of other images, set protocol=annotations"
            )
        by_task.setdefault((str(annotation.fields["task_id"]), _clean_rater_name(annotation)), []).append(annotation)
    version, answers, omitted = study.served, list[Answer](), Counter[str]()
    for (task_id, rater), group in by_task.items():
        task = version.tasks.get(task_id)
        answer = None if task is None else _read_answer(task, group)
        if task is None:
            omitted[f"to tasks that are not in version {version.version} of the study, left out"] += 1
        elif answer is None:
            omitted["not complete, left out"] += 1
        else:
            answers.append(_make_answer(task, version.version, rater, answer, group))
    kept = sum(study.add_imported_answer(answer) for answer in answers)
    notes += [f"{format_quantity(count, 'answer')} {reason}" for reason, count in omitted.items()]
    return ImportCounts(kept, len(answers) - kept, notes)


def _clean_rater_name(annotation: Annotation) -> str:
    try:
        return clean_name(annotation.rater, "rater")
    except BadNameError as error:
        raise SourceError(f"{annotation.where}: {error}; rename the person in the file") from error


def _make_answer(task: Task, version: int, rater: str, answer: Any, annotations: Sequence[Annotation]) -> Answer:
    where = annotations[-1].where
    if (problem := find_problem(TEMPLATES[task.template], answer, task.scope)) is not None:
        raise SourceError(
            f"{where}: {problem}; correct the answer, and check whether the project's configuration was edited"
        )
    times = [annotation.seconds for annotation in annotations if annotation.seconds is not None]
    try:
        return Answer(
            version=version,
            task_id=task.task_id,
            template=task.template,
            prompt_id=task.prompt_id,
            image_ids=task.image_ids,
            generators=task.generators,
            shown=_order_images(task),
            gold=task.gold,
            rater=rater,
            answer=answer,
            note=" ".join(filter(None, (_read_text(annotation, NOTE_QUESTION) for annotation in annotations)))[
                :MAX_NOTE_CHARACTERS
            ],
            seconds=sum(times) if times else None,
            at=max(row.at for row in annotations) or datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SourceError(f"{where}: {first['loc'][0]}: {first['msg']}; correct the file") from error


def _read_answer(task: Task, annotations: Sequence[Annotation]) -> Any:
    """Return the answer in the form that the task's template expects, or None if it is incomplete."""
    if task.template == "questions":
        replies = {str(row.fields.get("question_id")): _read_choice(row, task) for row in annotations}
        return None if None in replies.values() or len(replies) < len(task.questions) else replies
    last = annotations[-1]
    choice = _read_choice(last, task)
    if choice is None or choice in UNIVERSAL_ANSWERS:
        return choice
    return CONVERT_FUNCTIONS[task.template](task, last, choice)


def _read_choice(annotation: Annotation, task: Task) -> str | None:
    choice = _read_text(annotation, task.template)
    return CANNOT_TELL if choice == CHOICE_LABELS[CANNOT_TELL] else choice


def _read_text(annotation: Annotation, question: str) -> str | None:
    """Return the answer to a question as text, or None; in JSON-MIN, answers are among the record's fields."""
    text = annotation.answers.get(question, annotation.fields.get(question))
    return None if text is None else str(text)


def _convert_side(task: Task, annotation: Annotation, choice: str) -> str:
    left, right = ("ab"[index] for index in _order_images(task))
    return {"left": left, "right": right}.get(choice, choice)


def _convert_marks(task: Task, annotation: Annotation, choice: str) -> dict[str, list[int]]:
    """Return the indices of the marked words, grouped by mark; a word marked both wrong and unsure counts as wrong."""
    marked: dict[str, set[int]] = {mark: set() for mark in WORD_MARKS}
    for span in annotation.spans.get(MARKED_WORDS_QUESTION, ()):
        words = enumerate(split_words(task.prompt))
        marked.setdefault(span.label, set()).update(
            n for n, (_, start, end) in words if start < span.end and span.start < end
        )
    marked[UNSURE] -= marked["wrong"]
    return {mark: sorted(words) for mark, words in marked.items()}


CONVERT_FUNCTIONS: Mapping[str, Callable[[Task, Annotation, str], Any]] = {
    **dict.fromkeys(GRADED_TEMPLATES, lambda task, annotation, choice: int(choice) if choice.isdecimal() else choice),
    "words": _convert_marks,
    "side_by_side": _convert_side,
    "vote": _convert_side,
}
"""Functions by template that convert a choice to an answer."""
