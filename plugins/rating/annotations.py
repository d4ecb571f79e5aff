"""Reads exports from Label Studio and Argilla as ratings: each person's answers about each record."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base import tables
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.readers import DEFAULT_COLUMNS, RatingColumns
from plumbline.pipelines.metaeval.releases.release import (
    PartAnswer,
    Release,
    WordRating,
    group_skills,
    released,
    split_words,
)
from plumbline.pipelines.metaeval.releases.sheets import read_json, read_text, require_list

EXPORT_AGAIN_REMEDY = "export it again as JSON"
NO_RATING_MESSAGE = "no answer is a number, yes, no, unsure or a side"
MAX_LISTED_LABELS = 8
"""Maximum number of a question's labels that an error message lists."""
UNSURE_LABELS = ("unsure", "cannot tell", "cannot_tell")
"""Labels that count as no answer, both as choices and as marks on words."""
SHOWN_LABELS = ("shown", "aligned", "yes")
"""Labels that mark a word as shown in the image. Any other label marks the word as not shown."""
REPLY_RATINGS: Mapping[str, float | None] = {"yes": 1, "no": 0, **dict.fromkeys(UNSURE_LABELS)}
SIDE_LABELS: Mapping[str, float | None] = {
    **{"a": 1, "left": 1, "b": -1, "right": -1},
    **dict.fromkeys(("tie", "equal", "same", "both", "neither"), 0),
    **dict.fromkeys(UNSURE_LABELS),
}
"""Labels of a choice between two images: 1 prefers the first image, -1 the second, and 0 neither; None is unsure."""


class Span(NamedTuple):
    """A marked passage of a text."""

    start: int
    end: int
    label: str
    text: str | None = None
    """The marked text, if the export repeats it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """One person's answers about one record."""

    where: str
    """Name of the file and record, for error messages."""
    fields: Mapping[str, Any]
    """The record's fields: ids, texts, images."""
    rater: str
    answers: Mapping[str, str] = field(default_factory=dict)
    """Answers by question: a number or a chosen label, as text."""
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """Marked passages of the text, by question."""
    at: str = ""
    """Time of the answer in ISO 8601; empty if the export does not contain it."""
    seconds: float | None = None
    skip_reason: str = ""
    """Reason why the annotation does not count (skipped, draft); empty if it counts."""


def read_annotations(place: Place, columns: RatingColumns = DEFAULT_COLUMNS) -> Release:
    """Read the ratings, choices and marked words of an export. The answers to each question form one template.

    From Label Studio, read its JSON export (tasks with `annotations`) and its JSON-MIN export (one object per
    annotation), as written by label-studio-sdk 2.1.2 (converter/converter.py, convert_to_json_min; converter/utils.py,
    prettify_result). From Argilla 2, read records as JSON, either nested (`records.to_json`, `to_list`) or flattened
    (argilla 2.8.0, records/_io/_generic.py). From Argilla 1, read records (`responses` by user, with `values` and
    `status`) and the table that is uploaded to the Hugging Face Hub (one column of answers per question). The exports
    do not define what their questions mean, so the meaning is guessed:

    - A number (Rating, Number, RatingQuestion) is a rating.
    - A label (Choices, LabelQuestion) is a rating if it is a number, yes, no, unsure or "cannot tell". If the record
      has two images, the label (left or a, right or b, tie, unsure) is a choice between them; so is a Pairwise answer.
    - A marked span (Labels on a Text, SpanQuestion) contains words that the image does not show, unless its label is
      shown, aligned, yes or unsure. The fraction of words shown is a rating.

    `columns.values` assigns numbers to other labels. Questions whose answers have none of these forms are left out with
    a note. `columns` names fields of the record: Label Studio's `data`, or Argilla's fields, metadata and `id`. In
    JSON-MIN, Choices look like data, so `columns.rating` names the question. Skipped and discarded annotations do not
    count, and neither do drafts if the export identifies them.
    """
    annotations, notes = read_export(place, columns)
    readable = _find_readable_questions(annotations, columns)
    parts, words = list[PartAnswer](), list[WordRating]()
    preferences: list[dict[str, Any]] = []
    marking = {question for annotation in annotations for question in annotation.spans}
    for annotation in annotations:
        pair = _find_pair(annotation, columns)
        for question in (name for name in annotation.answers if name in readable):
            value = _parse_answer(annotation.answers[question], pair is not None, columns)
            if pair:
                preferences.append(
                    {**pair, "rater": annotation.rater, "template": question, "preferred": _convert_to_side(value)}
                )
            else:
                about = _find_text(annotation, columns.question_id) or ""
                parts.append(
                    PartAnswer(
                        *_find_ids(annotation, columns), annotation.rater, question, about, value, annotation.where
                    )
                )
        for question in sorted(marking) if pair is None else ():
            marked = list(_read_marked_words(annotation, question, columns))
            parts += _make_word_parts(marked, question)
            words += marked
    unread = sorted({question for annotation in annotations for question in annotation.answers} - readable)
    notes += [
        f"question {name!r} is not read: {NO_RATING_MESSAGE}; {_suggest_values(annotations, name)}" for name in unread
    ]
    skills = group_skills(
        (_find_text(annotation, columns.prompt_id), skill)
        for annotation in annotations
        for skill in _read_skills(annotation, columns)
    )
    return released(parts=parts, preferences=preferences, words=words, skills=skills, notes=notes)


def _find_readable_questions(annotations: Sequence[Annotation], columns: RatingColumns) -> set[str]:
    """Return the questions whose answers can be read as ratings or choices.

    Raises SourceError if only some of a question's answers can be read.
    """
    good: dict[str, Annotation] = {}
    bad: dict[str, Annotation] = {}
    for annotation in annotations:
        of_pair = _find_pair(annotation, columns) is not None
        for question, answer in annotation.answers.items():
            (good if _is_known_label(answer, of_pair, columns) else bad).setdefault(question, annotation)
    for question in good.keys() & bad.keys():
        annotation = bad[question]
        raise SourceError(
            f"{annotation.where}: {question!r} is answered with {annotation.answers[question]!r} here, but with "
            f"{good[question].answers[question]!r} elsewhere; correct it, or {_suggest_values([annotation], question)}"
        )
    return set(good)


def _suggest_values(annotations: Sequence[Annotation], question: str) -> str:
    """Return the suggested fix for unknown labels: the option that assigns a number to each label."""
    given = dict.fromkeys(
        annotation.answers[question].strip() for annotation in annotations if question in annotation.answers
    )
    named = [label for label in given if re.fullmatch(r"\w[\w .-]{0,40}", label)][:MAX_LISTED_LABELS] or ["LABEL"]
    return f"set +protocol.columns.values={{{', '.join(f'{label}: NUMBER' for label in named)}}}"


def _is_known_label(answer: str, of_pair: bool, columns: RatingColumns) -> bool:
    try:
        _parse_answer(answer, of_pair, columns)
    except ValueError:
        return False
    return True


def _parse_answer(answer: str, of_pair: bool, columns: RatingColumns) -> float | None:
    """Return an answer as a number: a rating, or the preferred side of a pair (SIDE_LABELS).

    Returns None for an unsure answer; raises ValueError if the answer is neither a rating nor a side.
    """
    label = answer.strip().lower()
    own = {name.lower(): value for name, value in columns.values.items()}
    for meanings in (own, SIDE_LABELS if of_pair else REPLY_RATINGS):
        if label in meanings:
            return meanings[label]
    if of_pair or not math.isfinite(number := float(label)):
        raise ValueError(label)
    return number


def _convert_to_side(value: float | None) -> str | None:
    if value is None:
        return None
    return "a" if value > 0 else "b" if value < 0 else "unsure"


def _find_text(annotation: Annotation, name: str) -> str | None:
    value = annotation.fields.get(name)
    return None if value in (None, "") else str(value)


def _require_text(annotation: Annotation, name: str, remedy: str) -> str:
    text = _find_text(annotation, name)
    if text is None:
        raise SourceError(
            f"{annotation.where}: expected a field {name}, found {', '.join(annotation.fields)}; {remedy}"
        )
    return text


def _read_skills(annotation: Annotation, columns: RatingColumns) -> Sequence[str | None]:
    skills = tables.convert_to_list(annotation.fields.get(columns.skills))
    return [str(name) for name in skills] if isinstance(skills, list) and skills else [None]


def _find_ids(annotation: Annotation, columns: RatingColumns) -> tuple[str, str | None, str | None]:
    """Return the ids of the annotated image, prompt and generator; raise SourceError if there is no image id.

    The prompt and the generator are None if the record does not name them. If the record names both but no image, the
    image's id is `prompt/generator`.
    """
    prompt_id, generator = _find_text(annotation, columns.prompt_id), _find_text(annotation, columns.generator)
    image_id = _find_text(annotation, columns.image_id)
    if image_id is None and prompt_id and generator:
        image_id = f"{prompt_id}/{generator}"
    remedy = f"set protocol.columns.image_id to the field that names the image, or add {columns.prompt_id} and "
    return image_id or _require_text(annotation, columns.image_id, f"{remedy}{columns.generator}"), prompt_id, generator


def _find_pair(annotation: Annotation, columns: RatingColumns) -> dict[str, str | None] | None:
    """Return the ids of a pair of images (columns of schemas.PREFERENCES), or None if fewer than two are named."""
    prompt_id = _find_text(annotation, columns.prompt_id) or _find_text(annotation, columns.prompt)
    pair: dict[str, str | None] = {"prompt_id": prompt_id}
    for side, image, generator in (
        ("a", columns.image_a, columns.generator_a),
        ("b", columns.image_b, columns.generator_b),
    ):
        name, made_by = _find_text(annotation, image), _find_text(annotation, generator)
        if name is None and (prompt_id is None or made_by is None):
            return None
        pair |= {f"image_{side}": name or f"{prompt_id}/{made_by}", f"generator_{side}": made_by}
    return pair


def _make_word_parts(marked: Sequence[WordRating], question: str) -> Iterator[PartAnswer]:
    for number, word in enumerate(marked):
        ids = (word.image_id, word.prompt_id, word.generator, word.rater)
        yield PartAnswer(*ids, question, str(number), word.aligned, word.where)


def _read_marked_words(annotation: Annotation, question: str, columns: RatingColumns) -> Iterator[WordRating]:
    """Yield every word of the prompt with the person's mark; if a word has several marks, the worst one counts."""
    ids = _find_ids(annotation, columns)
    remedy = "set protocol.columns.prompt to the field whose text was marked"
    prompt = _require_text(annotation, columns.prompt, remedy)
    spans = annotation.spans.get(question, ())
    for span in spans:
        if span.end > len(prompt) or span.text not in (None, prompt[span.start : span.end]):
            raise SourceError(
                f"{annotation.where}, {question}: characters {span.start} to {span.end} are not "
                f"{span.text or span.end!r} in {prompt!r}; {remedy}"
            )
    for word, start, end in split_words(prompt):
        labels = [span.label.lower() for span in spans if span.start < end and start < span.end]
        shown = [1.0 if label in SHOWN_LABELS else None if label in UNSURE_LABELS else 0.0 for label in labels] or [1.0]
        aligned = 0.0 if 0.0 in shown else None if None in shown else 1.0
        yield WordRating(*ids, annotation.rater, word, start, end, aligned, annotation.where)


class AnnotationExport(NamedTuple):
    """The contents of an annotation tool's export."""

    annotations: Sequence[Annotation]
    """The last annotation by each person for each record, without skipped or discarded annotations."""
    notes: list[str]


def read_export(place: Place, columns: RatingColumns = DEFAULT_COLUMNS) -> AnnotationExport:
    """Read an export of either tool; raise SourceError naming the first record that is in neither tool's format."""
    annotations: list[Annotation] = []
    for number, record in enumerate(_read_records(place)):
        where = f"{place.url}, record {number}"
        read = _choose_reader(require_object(record, where), where)
        annotations += read(record, where, columns)
    if not annotations:
        raise SourceError(f"{place.url}: no record has an annotation; {EXPORT_AGAIN_REMEDY} once there are annotations")
    reasons = Counter(annotation.skip_reason for annotation in annotations if annotation.skip_reason)
    counted = [annotation for annotation in annotations if not annotation.skip_reason]
    last = {
        (annotation.where, annotation.rater): annotation
        for annotation in sorted(counted, key=lambda annotation: annotation.at)
    }
    notes = [f"{format_quantity(count, 'annotation')} ({reason}) not counted" for reason, count in reasons.items()]
    if replaced := len(counted) - len(last):
        notes.append(f"{format_quantity(replaced, 'annotation')} replaced by a later one by the same person")
    return AnnotationExport(list(last.values()), notes)


def _read_records(place: Place) -> Sequence[Any]:
    if tables.is_json_lines(place.url):
        lines = enumerate(tables.split_lines(read_text(place)), start=1)
        return [tables.read_json(line.encode(), f"{place.url}, line {n}") for n, line in lines if line.strip()]
    content = read_json(place)
    return require_list(list(content.values()) if isinstance(content, dict) else content, "records", place.url)


RecordReader = Callable[[Mapping[str, Any], str, RatingColumns], Iterator[Annotation]]
"""Function that yields a record's annotations; the second argument names the file and record in error messages."""


def _choose_reader(record: Mapping[str, Any], where: str) -> RecordReader:
    if any(name in record for name in ("annotations", "completions", "annotation_id", "data")):
        return _read_label_studio
    if any(name in ("responses", "external_id") or name.endswith(RESPONSES_SUFFIX) for name in record):
        return _read_argilla
    raise SourceError(
        f"{where}: expected a Label Studio task with annotations, or an Argilla record with responses, found "
        f"{', '.join(record) or 'nothing'}; {EXPORT_AGAIN_REMEDY}"
    )


def _read_label_studio(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Iterator[Annotation]:
    if "annotation_id" in record:
        yield _read_json_min(record, where, columns)
        return
    data = require_object(record.get("data"), f"{where}, data")
    for given in _require_list(record.get("annotations") or record.get("completions"), f"{where}, annotations"):
        annotation = require_object(given, f"{where}, annotations")
        skipped = annotation.get("was_cancelled") or annotation.get("skipped")
        answers: dict[str, list[Mapping[str, Any]]] = {}
        for entry in _require_list(annotation.get("result"), f"{where}, result"):
            result = require_object(entry, f"{where}, result")
            if "from_name" in result:
                value = require_object(result.get("value"), f"{where}, {result['from_name']}")
                answers.setdefault(str(result["from_name"]), []).append({"kind": result.get("type"), **value})
        yield replace(
            _make_annotation(data, where, answers, annotation),
            rater=_format_annotator_name(annotation.get("completed_by")),
            skip_reason="skipped" * bool(skipped),
        )


def _read_json_min(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Annotation:
    """Return the annotation in a JSON-MIN object, which mixes the task's data with the answers."""
    answers = {
        name: [value if isinstance(value, dict) else {"choices": [value]} for value in values]
        for name, given in record.items()
        if (values := given if isinstance(given, list) else [given])
        and (name == columns.rating or isinstance(values[0], dict))
    }
    data = {name: value for name, value in record.items() if name not in answers}
    return replace(
        _make_annotation(data, where, answers, record), rater=_format_annotator_name(record.get("annotator"))
    )


def _format_annotator_name(given: Any) -> str:
    named = (given.get("email") or given.get("id")) if isinstance(given, dict) else given
    return "0" if named is None else str(named)


MAX_ANNOTATION_SECONDS = 1e7
"""Maximum annotation time in seconds; longer times and negative times are ignored."""
ANSWER_FIELDS = ("rating", "number", "selected", "choices", "text")
"""Fields of a Label Studio value that can contain an answer."""


def _make_annotation(
    data: Mapping[str, Any],
    where: str,
    values: Mapping[str, Sequence[Mapping[str, Any]]],
    annotation: Mapping[str, Any],
) -> Annotation:
    """Convert an annotation from Label Studio; `values` contains its answers by question."""
    answers: dict[str, str] = {}
    spans: dict[str, list[Span]] = {}
    for question, of_question in values.items():
        for value in of_question:
            if "labels" in value and "start" in value:
                label = ", ".join(map(str, _require_list(value["labels"], f"{where}, {question}, labels")))
                spans.setdefault(question, []).append(_make_span(value, label, f"{where}, {question}"))
            else:
                given = next((value[name] for name in ANSWER_FIELDS if name in value), value.get("kind", "something"))
                answers[question] = "; ".join(map(str, given)) if isinstance(given, list) else str(given)
    at = str(annotation.get("updated_at") or annotation.get("created_at") or "")
    lead_time = annotation.get("lead_time")
    seconds = (
        float(lead_time) if isinstance(lead_time, int | float) and 0 <= lead_time <= MAX_ANNOTATION_SECONDS else None
    )
    return Annotation(where=where, fields=data, rater="", answers=answers, spans=spans, at=at, seconds=seconds)


def _make_span(value: Mapping[str, Any], label: str, where: str) -> Span:
    start, end = value.get("start"), value.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
        raise SourceError(
            f"{where}: expected whole numbers for the start and end of the marked text, found {start!r} and {end!r}; "
            f"{EXPORT_AGAIN_REMEDY}"
        )
    return Span(start, end, label, value.get("text"))


RESPONSES_SUFFIX = ".responses"


class ArgillaResponse(NamedTuple):
    """One person's answer to one question in Argilla."""

    question: str
    user: str
    value: Any
    status: str | None


def _read_argilla(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Iterator[Annotation]:
    metadata = record.get("metadata") or {}
    fields = {**record, **require_object(record.get("fields") or {}, f"{where}, fields")}
    fields |= require_object(
        tables.read_json(metadata.encode(), where) if isinstance(metadata, str) else metadata, f"{where}, metadata"
    )
    by_user: dict[str, list[ArgillaResponse]] = {}
    for response in _read_responses(record, where):
        by_user.setdefault(response.user, []).append(response)
    for user, responses in by_user.items():
        status = next((response.status for response in responses if response.status not in (None, "submitted")), "")
        answered = [
            response for response in responses if response.value is not None and not _is_list_of_spans(response.value)
        ]
        spans = {
            response.question: [
                _make_span(span, str(span.get("label")), f"{where}, {response.question}") for span in response.value
            ]
            for response in responses
            if _is_list_of_spans(response.value)
        }
        answers = {response.question: str(response.value) for response in answered}
        yield Annotation(where=where, fields=fields, rater=user, answers=answers, spans=spans, skip_reason=f"{status}")


def _is_list_of_spans(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "start" in part for part in value)


def _read_responses(record: Mapping[str, Any], where: str) -> Iterator[ArgillaResponse]:
    """Yield the answers of a record in any of Argilla's four formats."""
    given = record.get("responses")
    for entry in given if isinstance(given, list) else ():  # version 1
        response = require_object(entry, f"{where}, responses")
        for question, value in require_object(response.get("values"), f"{where}, responses").items():
            answer = require_object(value, f"{where}, {question}")
            yield ArgillaResponse(question, str(response.get("user_id")), answer.get("value"), response.get("status"))
    for question, listed in (given if isinstance(given, dict) else _find_question_columns(record)).items():
        for response in _require_list(listed, f"{where}, {question}"):
            answer = require_object(response, f"{where}, {question}")
            yield ArgillaResponse(question, str(answer.get("user_id")), answer.get("value"), answer.get("status"))
    for name in (name for name in record if name.endswith(RESPONSES_SUFFIX)):  # version 2, flattened
        parts = [
            _require_list(record.get(column), f"{where}, {column}")
            for column in (name, f"{name}.users", f"{name}.status")
        ]
        values, users, statuses = parts[0], parts[1], parts[2] or [None] * len(parts[0])
        if not len(values) == len(users) == len(statuses):
            raise SourceError(
                f"{where}, {name}: expected a user for each of {len(values)} answers; {EXPORT_AGAIN_REMEDY}"
            )
        for value, user, status in zip(values, users, statuses, strict=True):
            yield ArgillaResponse(name.removesuffix(RESPONSES_SUFFIX), str(user), value, status)


def _require_list(value: Any, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise SourceError(f"{where}: expected a list, found {type(value).__name__}; {EXPORT_AGAIN_REMEDY}")
    return value or []


def _find_question_columns(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row in Argilla 1's Hub table that contain answers: lists of answers with their users."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, list) and value and all(isinstance(entry, dict) and "user_id" in entry for entry in value)
    }
