"""A study's tasks for teams who rate in Label Studio or Argilla, and their answers back into the study."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from xml.etree import ElementTree

from pydantic import ValidationError

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import words_in
from plumbline.pipelines.web.person_names import BadName, clean_name
from plumbline.plugins.rating.annotations import Annotation, read_export
from plumbline.plugins.rating.answers import LONGEST_NOTE, Answer
from plumbline.plugins.rating.pictures import Pictures
from plumbline.plugins.rating.question_templates import (
    CANNOT_TELL,
    MARKS,
    REPLIES,
    TEMPLATES,
    UNSURE,
    WHOLE,
    what_is_wrong,
)
from plumbline.plugins.rating.rate_config import ToolName
from plumbline.plugins.rating.study import Study
from plumbline.plugins.rating.tasks import Task

MARKED = "marked"
GRADED = {name: template for name, template in TEMPLATES.items() if template.grades}
CHOICES: Mapping[str, Sequence[str]] = {
    **{name: list(map(str, template.grades)) for name, template in GRADED.items()},
    "words": [MARKED],
    "questions": [reply for reply in REPLIES if reply not in WHOLE],
    "side_by_side": ["left", "right", "tie"],
    "vote": ["left", "right", "tie"],
}
"""What a rater may choose by each template, besides `unsure` and `cannot tell`."""
SPOKEN = {CANNOT_TELL: "cannot tell"}
MARKED_WORDS, NOTE = "wrong_words", "note"
"""Names of the questions beside that of the template's name."""
IMAGES = ("source", "image", "left", "right")
SHOWN = ("prompt", "question", *IMAGES)
"""Fields of records that raters see, in this order."""
PART = 50_000_000
"""Characters of a file of tasks, of which the last may go beyond."""
HINTS = {
    "words": f'Mark the words, then choose "{MARKED}", also where none is wrong.',
    **{
        name: ", ".join(f"{grade}: {anchor.rstrip('.')}" for grade, anchor in template.anchors.items())
        for name, template in GRADED.items()
        if template.anchors
    },
}
"""Text below the question, by template."""


class Exported(NamedTuple):
    """What was written."""

    files: Sequence[Place]
    notes: Sequence[str]
    """What is left out, in a line each."""


def export_tasks(study: Study, name: ToolName, raters: int) -> Exported:
    """Writes every task of a study with its pictures, by template, and how the tool is to ask so many raters.

    The files are in the study's folder, exports/TOOL. Nothing in them tells generators, images or right answers:
    `task_id` alone leads back.
    """
    tool, folder, files, notes = TOOLS[name], study.place / f"exports/{name}", list[Place](), list[str]()
    tasks = list(study.opened.tasks.values())
    for template in dict.fromkeys(task.template for task in tasks):
        asked = [task for task in tasks if task.template == template]
        for number, part in enumerate(_parts(_records(asked, study.opened.pictures, notes))):
            made = [tool.record(record, [name for name in SHOWN if name in record]) for record in part]
            files.append(folder / f"{template}.{number}.json")
            files[-1].write(json.dumps(made).encode())
            if number == 0:
                shown = [name for name in SHOWN if name in part[0]]
                files.append(folder / f"{template}.{tool.ending}")
                files[-1].write(tool.asking(template, shown, raters).encode())
    return Exported(files, notes)


def _parts(records: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """The records in lists of some `PART` characters, as tools take them at once."""
    part, size = list[dict[str, str]](), 0
    for record in records:
        part.append(record)
        size += sum(map(len, record.values()))
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _records(tasks: Iterable[Task], pictures: Pictures, notes: list[str]) -> Iterator[dict[str, str]]:
    """The tasks as tools hold them, flat and with their pictures, a record for each question; `notes` get more."""
    for task in tasks:
        names = ("image",) if len(task.places) == 1 else ("left", "right")
        images = [pictures.image(task, place) for place in _shown(task)]
        sources = pictures.sources(task)
        problem = next((one.message for one in (*images, *sources) if isinstance(one, RowError)), None)
        if problem is not None:
            notes.append(f"task {task.task_id} is left out, a picture has gone: {problem}")
            continue
        if len(sources) > 1:
            notes.append(f"task {task.task_id} shows the first of its {len(sources)} sources")
        shown = zip(("source",) * len(sources[:1]) + names, (*sources[:1], *images), strict=True)
        uris = {name: _uri(picture) for name, picture in shown if isinstance(picture, bytes)}
        record = {"task_id": task.task_id, "prompt": task.prompt, **uris}
        questions = [{"question_id": one.question_id, "question": one.text} for one in task.questions]
        yield from ({**record, **question} for question in questions or [{}])


def _shown(task: Task) -> tuple[int, ...]:
    """A task's images from left to right, which its id, a hash, decides."""
    places = tuple(range(len(task.places)))
    return places[::-1] if int(task.task_id, 16) % 2 else places


def _uri(picture: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(picture).decode()}"


def _choices(template: str) -> list[str]:
    return [*CHOICES[template], *(SPOKEN.get(name, name) for name in WHOLE)]


def _label_studio_view(template: str, shown: Sequence[str], raters: int) -> str:
    """The labelling configuration of a project."""
    view = ElementTree.Element("View")
    for text in (TEMPLATES[template].asks, *filter(None, [HINTS.get(template)])):
        ElementTree.SubElement(view, "Header", value=text)
    for name in shown:
        ElementTree.SubElement(view, "Image" if name in IMAGES else "Text", name=name, value=f"${name}")
    if template == "words":
        labels = ElementTree.SubElement(view, "Labels", name=MARKED_WORDS, toName="prompt")
        for mark in MARKS:
            ElementTree.SubElement(labels, "Label", value=mark)
    about, options = shown[-1], {"choice": "single-radio", "required": "true", "showInline": "true"}
    choices = ElementTree.SubElement(view, "Choices", {"name": template, "toName": about, **options})
    for choice in _choices(template):
        ElementTree.SubElement(choices, "Choice", value=choice)
    ElementTree.SubElement(view, "TextArea", name=NOTE, toName=about, placeholder="a note")
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode")


def _argilla_settings(template: str, shown: Sequence[str], raters: int) -> str:
    """The settings of a dataset of version 2."""
    fields = [{"name": name, "settings": {"type": "image" if name in IMAGES else "text"}} for name in shown]
    choices: dict[str, Any] = {"type": "label_selection", "options": _options(_choices(template))}
    questions = [{"name": template, "title": TEMPLATES[template].asks, "required": True, "settings": choices}]
    if template == "words":
        marks = {"type": "span", "field": "prompt", "options": _options(MARKS)}
        questions.append({"name": MARKED_WORDS, "required": False, "settings": marks})
    questions.append({"name": NOTE, "required": False, "settings": {"type": "text"}})
    settings = {
        "guidelines": HINTS.get(template),
        "fields": fields,
        "questions": questions,
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": raters},
    }
    return json.dumps(settings, indent=1)


def _argilla_record(record: Mapping[str, str], shown: Sequence[str]) -> dict[str, Any]:
    ids = {name: record[name] for name in ("task_id", "question_id") if name in record}
    empty: dict[str, Any] = {name: {} for name in ("suggestions", "responses", "vectors")}
    return {"id": "/".join(ids.values()), "fields": {name: record[name] for name in shown}, "metadata": ids, **empty}


def _options(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"value": name, "text": name} for name in names]


class Tool(NamedTuple):
    """A tool in which people rate."""

    record: Callable[[Mapping[str, str], Sequence[str]], dict[str, Any]]
    """A record as the tool takes it, of the fields that it shows."""
    asking: Callable[[str, Sequence[str], int], str]
    """How it is to ask by a template, with these fields, of so many raters."""
    ending: str
    """Of the file with that."""


TOOLS: Mapping[ToolName, Tool] = {
    "label_studio": Tool(lambda record, shown: {"data": record}, _label_studio_view, "xml"),
    "argilla": Tool(_argilla_record, _argilla_settings, "settings.json"),
}


class Imported(NamedTuple):
    """What became of the answers of an export."""

    kept: int
    known: int
    """That the study had already."""
    notes: Sequence[str]


def import_answers(study: Study, export: Place) -> Imported:
    """Keeps the answers that people gave elsewhere to tasks of `export_tasks`; what is known already is kept once.

    An answer that is other than the one kept is its next revision. Raises SourceError naming the record that is none
    of the study's, or whose answer is not valid, before anything is kept.
    """
    annotations, notes = read_export(export)
    by_task: dict[tuple[str, str], list[Annotation]] = {}
    for one in annotations:
        if "task_id" not in one.fields:
            raise SourceError(
                f"{one.where}: no task_id, so it is none of a study's tasks (export_to=); judge by such ratings with "
                "protocol=annotations"
            )
        by_task.setdefault((str(one.fields["task_id"]), _rater(one)), []).append(one)
    opened, answers, left_out = study.opened, list[Answer](), Counter[str]()
    for (task_id, rater), said in by_task.items():
        task = opened.tasks.get(task_id)
        answer = None if task is None else _said(task, said)
        if task is None:
            left_out[f"to tasks that version {opened.version} of the study does not ask, left out"] += 1
        elif answer is None:
            left_out["not given to the end, left out"] += 1
        else:
            answers.append(_checked(task, opened.version, rater, answer, said))
    kept = sum(study.keep_elsewhere(answer) for answer in answers)
    notes += [f"{plural(count, 'answer')} {reason}" for reason, count in left_out.items()]
    return Imported(kept, len(answers) - kept, notes)


def _rater(one: Annotation) -> str:
    try:
        return clean_name(one.rater, "rater")
    except BadName as error:
        raise SourceError(f"{one.where}: {error}; rename the person in the file") from error


def _checked(task: Task, version: int, rater: str, answer: Any, said: Sequence[Annotation]) -> Answer:
    """The answer as the study keeps it; raises SourceError where it is not valid."""
    if (problem := what_is_wrong(TEMPLATES[task.template], answer, task.asked)) is not None:
        raise SourceError(f"{said[-1].where}: {problem}; was the project's configuration edited? Correct the answer")
    try:
        return Answer(
            version=version,
            task_id=task.task_id,
            template=task.template,
            prompt_id=task.prompt_id,
            image_ids=task.image_ids,
            generators=task.generators,
            shown=_shown(task),
            gold=task.gold,
            rater=rater,
            answer=answer,
            note=" ".join(filter(None, (_text(one, NOTE) for one in said)))[:LONGEST_NOTE],
            seconds=sum(timed) if (timed := [one.seconds for one in said if one.seconds is not None]) else None,
            at=max(one.at for one in said) or datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SourceError(f"{said[-1].where}: {first['loc'][0]}: {first['msg']}; correct the file") from error


def _said(task: Task, said: Sequence[Annotation]) -> Any:
    """What was answered, in the form that the task's template takes; None where something was left open."""
    if task.template == "questions":
        replies = {str(one.fields.get("question_id")): _choice(one, task) for one in said}
        return None if None in replies.values() or len(replies) < len(task.questions) else replies
    last = said[-1]
    choice = _choice(last, task)
    if choice is None or choice in WHOLE:
        return choice
    return READ[task.template](task, last, choice)


def _choice(one: Annotation, task: Task) -> str | None:
    choice = _text(one, task.template)
    return CANNOT_TELL if choice == SPOKEN[CANNOT_TELL] else choice


def _text(one: Annotation, question: str) -> str | None:
    """An answer; Label Studio's JSON-MIN has it among the fields."""
    text = one.answers.get(question, one.fields.get(question))
    return None if text is None else str(text)


def _side(task: Task, one: Annotation, choice: str) -> str:
    left, right = ("ab"[place] for place in _shown(task))
    return {"left": left, "right": right}.get(choice, choice)


def _marks(task: Task, one: Annotation, choice: str) -> dict[str, list[int]]:
    """The words that were marked, each as the worst of what it was marked as."""
    marked: dict[str, set[int]] = {mark: set() for mark in MARKS}
    for span in one.spans.get(MARKED_WORDS, ()):
        words = enumerate(words_in(task.prompt))
        marked.setdefault(span.label, set()).update(
            n for n, (_, start, end) in words if start < span.end and span.start < end
        )
    marked[UNSURE] -= marked["wrong"]
    return {mark: sorted(words) for mark, words in marked.items()}


READ: Mapping[str, Callable[[Task, Annotation, str], Any]] = {
    **dict.fromkeys(GRADED, lambda task, one, choice: int(choice) if choice.isdecimal() else choice),
    "words": _marks,
    "side_by_side": _side,
    "vote": _side,
}
"""By template, the answer that a choice is."""
