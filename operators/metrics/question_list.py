"""Questions that come with an image, in the forms in which benchmarks, trainers and people write them down."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked
from pydantic_core import from_json

from plumbline.operators.base.errors import ConfigError, PlumblineError, RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion, identified

MAX_QUESTIONS = 256
"""Of one list; the longest of a released pack has about 40."""
TEXT = "text"
"""The kind of a question whose answer is a text to be written in the image."""


class BadQuestion(PlumblineError):
    """A question that cannot be asked; the message says what is wrong with it."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ListedQuestion:
    """A question as an object of JSON: the columns of the table QUESTIONS that a person can fill in."""

    text: str
    choices: list[str] | None = None
    """None or several; a judge's checkpoint has none."""
    answer: str | None = None
    """The right choice."""
    kind: str | None = None
    question_id: str | None = None
    """What `parents` of other questions name it by, where some do."""
    parents: list[str] | None = None


OBJECT = TypeAdapter(ListedQuestion)


def require_asker(wanted: Collection[str], packed: Collection[str]) -> None:
    """Raises ConfigError for questions that come with images where none of the metrics that are wanted asks them."""
    if not packed:
        raise ConfigError(
            f"questions: {' and '.join(wanted)} would ignore them; leave them out, or use a metric that scores by a "
            "benchmark's own questions, such as geneval2 (docs/questions.md), or by texts, such as text"
        )


def read_questions(listed: Any) -> tuple[WrittenQuestion, ...] | RowError:
    """The questions of a list, under ids of their content, or why they cannot be asked.

    An entry is a pair [question, answer], as in GenEval2's `vqa_list`, an object (ListedQuestion), or a text that is to
    be written in the image. A list that is a text is read as JSON: so do tables hold one in a column of texts.
    """
    try:
        entries = _entries(listed)
        questions = [_question(entry, place) for place, entry in enumerate(entries)]
        _require_parents(questions)
    except BadQuestion as error:
        return RowError("no_questions", f"the questions that came with the prompt cannot be asked: {error}")
    return tuple(identified(questions))


def wanted_text(place: int, text: str, start: int | None = None, end: int | None = None) -> WrittenQuestion:
    """A text that is to be written in the image, with its characters in the prompt."""
    return WrittenQuestion(str(place), f"Which words are written? “{text}”", (), text, TEXT, text, start, end)


def read_pair(pair: Any, place: int, kind: str | None = None) -> WrittenQuestion:
    """A pair [question, answer]: a question with the one right answer as its choice. Raises BadQuestion."""
    texts = pair if isinstance(pair, list | tuple) and len(pair) == 2 else ()
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadQuestion(f"expected a pair [question, answer] of texts, found {parsing.shown(str(pair))}")
    question, answer = texts
    return WrittenQuestion(str(place), question, (answer,), answer, kind)


def _entries(listed: Any) -> Sequence[Any]:
    if isinstance(listed, str):
        try:
            listed = from_json(listed)
        except ValueError as error:
            raise BadQuestion(f"expected a list, or the JSON of one, found {parsing.shown(listed)}") from error
    if not isinstance(listed, list | tuple):
        raise BadQuestion(f"expected a list, found {type(listed).__name__}")
    if not 0 < len(listed) <= MAX_QUESTIONS:
        raise BadQuestion(f"expected 1 to {MAX_QUESTIONS} questions, found {len(listed)}")
    return listed


def _question(entry: Any, place: int) -> WrittenQuestion:
    try:
        question = _of_entry(entry, place)
        json.dumps(question, ensure_ascii=False).encode()
    except BadQuestion as error:
        raise BadQuestion(f"question {place}: {error}") from error
    except UnicodeEncodeError as error:
        raise BadQuestion(f"question {place}: expected text, found half a character") from error
    return question


def _of_entry(entry: Any, place: int) -> WrittenQuestion:
    if isinstance(entry, dict):
        return _of_object(entry, place)
    is_text = isinstance(entry, str) and entry.strip()
    question = wanted_text(place, entry) if is_text else read_pair(entry, place)
    return question._replace(question_id=_unnamed(place))


def _unnamed(place: int) -> str:
    """The id of a question that has none of its own."""
    return f"question {place}"


def _of_object(entry: Any, place: int) -> WrittenQuestion:
    try:
        listed: ListedQuestion = OBJECT.validate_python(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise BadQuestion(f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg']}") from error
    choices = tuple(listed.choices or ())
    if not listed.text.strip() or not all(choice.strip() for choice in choices):
        raise BadQuestion("expected words in `text` and in each of `choices`")
    if len(set(choices)) < len(choices) or (listed.answer not in choices if choices else listed.answer is not None):
        answer = None if listed.answer is None else parsing.shown(listed.answer)
        raise BadQuestion(f"expected the one right answer among different choices, found {answer} and {[*choices]}")
    name = _unnamed(place) if listed.question_id is None else listed.question_id
    return WrittenQuestion(name, listed.text, choices, listed.answer, listed.kind, parents=tuple(listed.parents or ()))


def _require_parents(questions: Sequence[WrittenQuestion]) -> None:
    names = [question.question_id for question in questions]
    if len(set(names)) < len(names):
        raise BadQuestion("two questions have the same question_id")
    for question in questions:
        for parent in question.parents:
            if parent not in names:
                raise BadQuestion(f"no question has the question_id {parent!r}, which `parents` names")
