"""Exports of Label Studio and Argilla: what each person said of each record, and the ratings in it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base import tables
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import as_object
from plumbline.pipelines.judging.releases.readers import USUAL, RatingColumns
from plumbline.pipelines.judging.releases.release import Part, Release, Word, released, skills_of, words_in
from plumbline.pipelines.judging.releases.sheets import as_list, read_json, read_text

AGAIN = "export it again as JSON"
NO_RATING = "no answer is a number, yes, no, unsure or a side"
MAX_LABELS = 8
"""Labels of one question that a remedy names."""
UNSURE = ("unsure", "cannot tell", "cannot_tell")
"""Labels of choices and of marked words by which nothing is said."""
SHOWN = ("shown", "aligned", "yes")
"""Labels of marked words that are in the image; every other label is of words that are not."""
REPLIES: Mapping[str, float | None] = {"yes": 1, "no": 0, **dict.fromkeys(UNSURE)}
SIDES: Mapping[str, float | None] = {
    **{"a": 1, "left": 1, "b": -1, "right": -1},
    **dict.fromkeys(("tie", "equal", "same", "both", "neither"), 0),
    **dict.fromkeys(UNSURE),
}
"""Labels of a choice between two images: 1 is the first, -1 the second, 0 neither."""


class Span(NamedTuple):
    """A marked part of a text."""

    start: int
    end: int
    label: str
    text: str | None = None
    """As the tool repeats it, where it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """What one person said of one record."""

    where: str
    """The file and the record."""
    fields: Mapping[str, Any]
    """What the record shows and names: ids, texts, images."""
    rater: str
    answers: Mapping[str, str] = field(default_factory=dict)
    """By question, the number that was given, or the label that was chosen, as text."""
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """By question, what was marked."""
    at: str = ""
    """When; empty where the tool does not say."""
    seconds: float | None = None
    dropped: str = ""
    """Why it does not count (skipped, a draft); empty where it does."""


def read_annotations(place: Place, columns: RatingColumns = USUAL) -> Release:
    """The ratings, choices and marked words of an export, by the names of their questions.

    Label Studio: its exports JSON (`annotations` of tasks) and JSON-MIN (an object for each annotation), as
    label-studio-sdk 2.1.2 writes them (converter/converter.py, convert_to_json_min; converter/utils.py,
    prettify_result). Argilla: records as JSON, of version 2 nested (`records.to_json`, `to_list`) or flattened (argilla
    2.8.0, records/_io/_generic.py), of version 1 (`responses` by user, with `values` and `status`) and its table for
    the Hub (a column of answers for each question). Neither says what its questions mean, which is guessed:

    - a number (Rating, Number, RatingQuestion) is a rating;
    - a label (Choices, LabelQuestion) is one too where it is a number, yes, no, unsure or "cannot tell"; where the
      record has two images, it is a choice between these, as Pairwise is: left or a, right or b, tie, unsure;
    - marked text (Labels of a Text, SpanQuestion) is of words that the image does not show, unless its label is shown,
      aligned or yes, or unsure. The share of words shown is a rating.

    `columns.values` give other labels their numbers. A question of which no answer is any of this is left out with a
    note. `columns` name fields of the record: Label Studio's `data`, Argilla's fields, metadata and `id`. In JSON-MIN,
    Choices look like data: `columns.rating` names them. What was skipped or discarded, and drafts where the export
    tells them, do not count.
    """
    annotations, notes = read_export(place, columns)
    readable = _readable(annotations, columns)
    parts, words = list[Part](), list[Word]()
    preferences: list[dict[str, Any]] = []
    marking = {question for one in annotations for question in one.spans}
    for one in annotations:
        pair = _pair(one, columns)
        for question in (name for name in one.answers if name in readable):
            value = _meaning(one.answers[question], pair is not None, columns)
            if pair:
                preferences.append({**pair, "rater": one.rater, "template": question, "preferred": _side(value)})
            else:
                about = _text(one, columns.question_id) or ""
                parts.append(Part(*_ids(one, columns), one.rater, question, about, value, one.where))
        for question in sorted(marking) if pair is None else ():
            marked = list(_marked_words(one, question, columns))
            parts += _word_parts(marked, question)
            words += marked
    unread = sorted({question for one in annotations for question in one.answers} - readable)
    notes += [f"question {name!r} is not read: {NO_RATING}; {_own_labels(annotations, name)}" for name in unread]
    skills = skills_of((_text(one, columns.prompt_id), skill) for one in annotations for skill in _skills(one, columns))
    return released(parts=parts, preferences=preferences, words=words, skills=skills, notes=notes)


def _readable(annotations: Sequence[Annotation], columns: RatingColumns) -> set[str]:
    """The questions that are answered by ratings or choices; raises SourceError naming an answer that is neither, where
    others to the question are.
    """
    good: dict[str, Annotation] = {}
    bad: dict[str, Annotation] = {}
    for one in annotations:
        of_pair = _pair(one, columns) is not None
        for question, answer in one.answers.items():
            (good if _is_known(answer, of_pair, columns) else bad).setdefault(question, one)
    for question in good.keys() & bad.keys():
        one = bad[question]
        raise SourceError(
            f"{one.where}: {question!r} is answered by {one.answers[question]!r}, and elsewhere by "
            f"{good[question].answers[question]!r}; correct it, or {_own_labels([one], question)}"
        )
    return set(good)


def _own_labels(annotations: Sequence[Annotation], question: str) -> str:
    """Return the remedy for labels without a meaning: the option that gives each its number."""
    given = dict.fromkeys(one.answers[question].strip() for one in annotations if question in one.answers)
    named = [label for label in given if re.fullmatch(r"\w[\w .-]{0,40}", label)][:MAX_LABELS] or ["LABEL"]
    return f"set +protocol.columns.values={{{', '.join(f'{label}: NUMBER' for label in named)}}}"


def _is_known(answer: str, of_pair: bool, columns: RatingColumns) -> bool:
    try:
        _meaning(answer, of_pair, columns)
    except ValueError:
        return False
    return True


def _meaning(answer: str, of_pair: bool, columns: RatingColumns) -> float | None:
    """An answer as a rating, or as one of SIDES; None where nothing is said. Raises ValueError where it is neither."""
    label = answer.strip().lower()
    own = {name.lower(): value for name, value in columns.values.items()}
    for meanings in (own, SIDES if of_pair else REPLIES):
        if label in meanings:
            return meanings[label]
    if of_pair or not math.isfinite(number := float(label)):
        raise ValueError(label)
    return number


def _side(value: float | None) -> str | None:
    if value is None:
        return None
    return "a" if value > 0 else "b" if value < 0 else "unsure"


def _text(one: Annotation, name: str) -> str | None:
    value = one.fields.get(name)
    return None if value in (None, "") else str(value)


def _required(one: Annotation, name: str, remedy: str) -> str:
    text = _text(one, name)
    if text is None:
        raise SourceError(f"{one.where}: no {name} among its fields {', '.join(one.fields)}; {remedy}")
    return text


def _skills(one: Annotation, columns: RatingColumns) -> Sequence[str | None]:
    skills = tables.as_list(one.fields.get(columns.skills))
    return [str(name) for name in skills] if isinstance(skills, list) and skills else [None]


def _ids(one: Annotation, columns: RatingColumns) -> tuple[str, str | None, str | None]:
    """The image, prompt and generator that an annotation is of; raises SourceError where nothing names the image."""
    prompt_id, generator = _text(one, columns.prompt_id), _text(one, columns.generator)
    image_id = _text(one, columns.image_id)
    if image_id is None and prompt_id and generator:
        image_id = f"{prompt_id}/{generator}"
    remedy = f"set protocol.columns.image_id to the field that names the image, or add {columns.prompt_id} and "
    return image_id or _required(one, columns.image_id, f"{remedy}{columns.generator}"), prompt_id, generator


def _pair(one: Annotation, columns: RatingColumns) -> dict[str, str | None] | None:
    """The two images that an annotation chooses from, as in schemas.PREFERENCES; None where it is of one."""
    prompt_id = _text(one, columns.prompt_id) or _text(one, columns.prompt)
    pair: dict[str, str | None] = {"prompt_id": prompt_id}
    for side, image, generator in (
        ("a", columns.image_a, columns.generator_a),
        ("b", columns.image_b, columns.generator_b),
    ):
        name, made_by = _text(one, image), _text(one, generator)
        if name is None and (prompt_id is None or made_by is None):
            return None
        pair |= {f"image_{side}": name or f"{prompt_id}/{made_by}", f"generator_{side}": made_by}
    return pair


def _word_parts(marked: Sequence[Word], question: str) -> Iterator[Part]:
    """Yield the marks of a prompt's words as parts of the rating by a question."""
    for number, word in enumerate(marked):
        ids = (word.image_id, word.prompt_id, word.generator, word.rater)
        yield Part(*ids, question, str(number), word.aligned, word.where)


def _marked_words(one: Annotation, question: str, columns: RatingColumns) -> Iterator[Word]:
    """Every word of the prompt, with what a person marked of it; of a word that is marked twice, the worst."""
    ids = _ids(one, columns)
    remedy = "set protocol.columns.prompt to the field whose text was marked"
    prompt = _required(one, columns.prompt, remedy)
    spans = one.spans.get(question, ())
    for span in spans:
        if span.end > len(prompt) or span.text not in (None, prompt[span.start : span.end]):
            raise SourceError(
                f"{one.where}, {question}: {span.text or span.end!r} is not at {span.start} to {span.end} of "
                f"{prompt!r}; {remedy}"
            )
    for word, start, end in words_in(prompt):
        labels = [span.label.lower() for span in spans if span.start < end and start < span.end]
        said = [1.0 if label in SHOWN else None if label in UNSURE else 0.0 for label in labels] or [1.0]
        aligned = 0.0 if 0.0 in said else None if None in said else 1.0
        yield Word(*ids, one.rater, word, start, end, aligned, one.where)


class Export(NamedTuple):
    """What an export holds."""

    annotations: Sequence[Annotation]
    """The last of each person and record."""
    notes: list[str]


def read_export(place: Place, columns: RatingColumns = USUAL) -> Export:
    """What an export of either tool holds; raises SourceError naming the record that is of none."""
    annotations: list[Annotation] = []
    for number, record in enumerate(_records(place)):
        where = f"{place.url}, record {number}"
        read = _reader_of(as_object(record, where), where)
        annotations += read(record, where, columns)
    if not annotations:
        raise SourceError(f"{place.url}: nobody has annotated a record; {AGAIN} when somebody has")
    dropped = Counter(one.dropped for one in annotations if one.dropped)
    counted = [one for one in annotations if not one.dropped]
    last = {(one.where, one.rater): one for one in sorted(counted, key=lambda one: one.at)}
    notes = [f"{plural(count, 'annotation')} ({reason}) not counted" for reason, count in dropped.items()]
    if replaced := len(counted) - len(last):
        notes.append(f"{plural(replaced, 'annotation')} replaced by a later one of the same person")
    return Export(list(last.values()), notes)


def _records(place: Place) -> Sequence[Any]:
    """The records of a JSON list, of an object of records by id, or of JSON Lines."""
    if tables.is_json_lines(place.url):
        lines = enumerate(tables.split_lines(read_text(place)), start=1)
        return [tables.read_json(line.encode(), f"{place.url}, line {n}") for n, line in lines if line.strip()]
    content = read_json(place)
    return as_list(list(content.values()) if isinstance(content, dict) else content, "records", place.url)


Reader = Callable[[Mapping[str, Any], str, RatingColumns], Iterator[Annotation]]
"""Of a record, with where it stands."""


def _reader_of(record: Mapping[str, Any], where: str) -> Reader:
    if any(name in record for name in ("annotations", "completions", "annotation_id", "data")):
        return _label_studio
    if any(name in ("responses", "external_id") or name.endswith(RESPONSES) for name in record):
        return _argilla
    raise SourceError(
        f"{where}: expected a task of Label Studio with annotations, or a record of Argilla with responses; found "
        f"{', '.join(record) or 'nothing'}; {AGAIN}"
    )


def _label_studio(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Iterator[Annotation]:
    if "annotation_id" in record:
        yield _minimal(record, where, columns)
        return
    data = as_object(record.get("data"), f"{where}, data")
    for given in _listed(record.get("annotations") or record.get("completions"), f"{where}, annotations"):
        annotation = as_object(given, f"{where}, annotations")
        skipped = annotation.get("was_cancelled") or annotation.get("skipped")
        answers: dict[str, list[Mapping[str, Any]]] = {}
        for one in _listed(annotation.get("result"), f"{where}, result"):
            result = as_object(one, f"{where}, result")
            if "from_name" in result:
                value = as_object(result.get("value"), f"{where}, {result['from_name']}")
                answers.setdefault(str(result["from_name"]), []).append({"kind": result.get("type"), **value})
        yield replace(
            _said(data, where, answers, annotation),
            rater=_annotator(annotation.get("completed_by")),
            dropped="skipped" * bool(skipped),
        )


def _minimal(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Annotation:
    """An annotation of JSON-MIN, in which the data and the answers are mixed."""
    answers = {
        name: [value if isinstance(value, dict) else {"choices": [value]} for value in values]
        for name, given in record.items()
        if (values := given if isinstance(given, list) else [given])
        and (name == columns.rating or isinstance(values[0], dict))
    }
    data = {name: value for name, value in record.items() if name not in answers}
    return replace(_said(data, where, answers, record), rater=_annotator(record.get("annotator")))


def _annotator(given: Any) -> str:
    named = (given.get("email") or given.get("id")) if isinstance(given, dict) else given
    return "0" if named is None else str(named)


LONGEST = 1e7
"""Seconds; a longer time, as a shorter one than none, is no time."""
VALUES = ("rating", "number", "selected", "choices", "text")
"""Fields of a value in Label Studio that are an answer by themselves."""


def _said(
    data: Mapping[str, Any],
    where: str,
    values: Mapping[str, Sequence[Mapping[str, Any]]],
    annotation: Mapping[str, Any],
) -> Annotation:
    """An annotation of Label Studio's values by question."""
    answers: dict[str, str] = {}
    spans: dict[str, list[Span]] = {}
    for question, of_question in values.items():
        for value in of_question:
            if "labels" in value and "start" in value:
                label = ", ".join(map(str, _listed(value["labels"], f"{where}, {question}, labels")))
                spans.setdefault(question, []).append(_span(value, label, f"{where}, {question}"))
            else:
                given = next((value[name] for name in VALUES if name in value), value.get("kind", "something"))
                answers[question] = "; ".join(map(str, given)) if isinstance(given, list) else str(given)
    at = str(annotation.get("updated_at") or annotation.get("created_at") or "")
    lead_time = annotation.get("lead_time")
    seconds = float(lead_time) if isinstance(lead_time, int | float) and 0 <= lead_time <= LONGEST else None
    return Annotation(where=where, fields=data, rater="", answers=answers, spans=spans, at=at, seconds=seconds)


def _span(value: Mapping[str, Any], label: str, where: str) -> Span:
    start, end = value.get("start"), value.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
        raise SourceError(f"{where}: expected the first and last character of marked text, found {start!r} to {end!r}")
    return Span(start, end, label, value.get("text"))


RESPONSES = ".responses"


class Response(NamedTuple):
    """One person's answer to one question in Argilla."""

    question: str
    user: str
    value: Any
    status: str | None


def _argilla(record: Mapping[str, Any], where: str, columns: RatingColumns) -> Iterator[Annotation]:
    metadata = record.get("metadata") or {}
    fields = {**record, **as_object(record.get("fields") or {}, f"{where}, fields")}
    fields |= as_object(
        tables.read_json(metadata.encode(), where) if isinstance(metadata, str) else metadata, f"{where}, metadata"
    )
    by_user: dict[str, list[Response]] = {}
    for response in _responses(record, where):
        by_user.setdefault(response.user, []).append(response)
    for user, responses in by_user.items():
        status = next((one.status for one in responses if one.status not in (None, "submitted")), "")
        said = [one for one in responses if one.value is not None and not _are_spans(one.value)]
        spans = {
            one.question: [_span(span, str(span.get("label")), f"{where}, {one.question}") for span in one.value]
            for one in responses
            if _are_spans(one.value)
        }
        answers = {one.question: str(one.value) for one in said}
        yield Annotation(where=where, fields=fields, rater=user, answers=answers, spans=spans, dropped=f"{status}")


def _are_spans(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "start" in part for part in value)


def _responses(record: Mapping[str, Any], where: str) -> Iterator[Response]:
    """The answers of a record in whichever of Argilla's four forms it is."""
    given = record.get("responses")
    for one in given if isinstance(given, list) else ():  # version 1
        response = as_object(one, f"{where}, responses")
        for question, value in as_object(response.get("values"), f"{where}, responses").items():
            answer = as_object(value, f"{where}, {question}")
            yield Response(question, str(response.get("user_id")), answer.get("value"), response.get("status"))
    for question, said in (given if isinstance(given, dict) else _columns_of(record)).items():
        for response in _listed(said, f"{where}, {question}"):
            answer = as_object(response, f"{where}, {question}")
            yield Response(question, str(answer.get("user_id")), answer.get("value"), answer.get("status"))
    for name in (name for name in record if name.endswith(RESPONSES)):  # version 2, flattened
        parts = [
            _listed(record.get(column), f"{where}, {column}") for column in (name, f"{name}.users", f"{name}.status")
        ]
        values, users, statuses = parts[0], parts[1], parts[2] or [None] * len(parts[0])
        if not len(values) == len(users) == len(statuses):
            raise SourceError(f"{where}, {name}: expected a user for each of {len(values)} answers; {AGAIN}")
        for value, user, status in zip(values, users, statuses, strict=True):
            yield Response(name.removesuffix(RESPONSES), str(user), value, status)


def _listed(value: Any, where: str) -> list[Any]:
    """A list, empty where there is none; raises SourceError where it is something else."""
    if value is not None and not isinstance(value, list):
        raise SourceError(f"{where}: expected a list, found {type(value).__name__}; {AGAIN}")
    return value or []


def _columns_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The questions of version 1's table for the Hub: lists of answers with who gave them."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, list) and value and all(isinstance(one, dict) and "user_id" in one for one in value)
    }
