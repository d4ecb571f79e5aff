"""Questions sent along with an image, in the formats that benchmarks, trainers and people use."""

import json
from collections.abc import Collection
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked
from pydantic_core import from_json

from plumbline.operators.base.errors import ConfigError, PlumblineError, RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids

MAX_QUESTIONS = 256
"""Maximum number of questions in a list; the longest list in a released pack has about 40."""
TEXT_KIND = "text"
"""Kind of question whose answer is text that should appear in the image."""


class BadQuestionError(PlumblineError):
    """Error for a question that cannot be asked; the message gives the reason."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ListedQuestion:
    """A question given as a JSON object; its fields are the columns of QUESTIONS that a person can fill in."""

    text: str
    choices: list[str] | None = None
    """Possible answers; None for a requirement that a judge rates."""
    answer: str | None = None
    """The correct choice."""
    kind: str | None = None
    question_id: str | None = None
    """Id by which other questions refer to this question in `parents`."""
    parents: list[str] | None = None


QUESTION_ADAPTER = TypeAdapter(ListedQuestion)


def require_question_metric(wanted: Collection[str], packed: Collection[str]) -> None:
    """Raise ConfigError if questions come with the images but none of the requested metrics uses them."""
    if not packed:
        raise ConfigError(
            f"questions: {' and '.join(wanted)} would ignore them; leave them out, or use a metric that asks a "
            "benchmark's own questions, such as geneval2, or checks its texts, such as text (docs/questions.md)"
        )


def read_questions(listed: Any) -> tuple[WrittenQuestion, ...] | RowError:
    """Return a list of questions with ids derived from their content, or an error if one cannot be asked.

    An entry is a pair [question, answer] as in GenEval2's `vqa_list`, an object (ListedQuestion), or a string that
    should appear in the image. A list given as a string is parsed as JSON, which is how tables contain lists.
    """
    try:
        if isinstance(listed, str):
            try:
                listed = from_json(listed)
            except ValueError as error:
                found = parsing.shorten(listed)
                raise BadQuestionError(f"expected a list, or a list as JSON, found {found}") from error
        if not isinstance(listed, list | tuple):
            raise BadQuestionError(f"expected a list, found {type(listed).__name__}")
        if not 0 < len(listed) <= MAX_QUESTIONS:
            raise BadQuestionError(f"expected 1 to {MAX_QUESTIONS} questions, found {len(listed)}")
        questions = [_read_entry(entry, number) for number, entry in enumerate(listed)]
        names = [question.question_id for question in questions]
        if len(set(names)) < len(names):
            raise BadQuestionError("two questions have the same question_id")
        for parent in (parent for question in questions for parent in question.parents):
            if parent not in names:
                raise BadQuestionError(f"`parents` contains {parent!r}, but no question has this question_id")
    except BadQuestionError as error:
        return RowError("no_questions", f"the questions that came with the prompt cannot be asked: {error}")
    return tuple(assign_ids(questions))


def make_text_question(number: int, text: str, start: int | None = None, end: int | None = None) -> WrittenQuestion:
    """Return a question that asks which words are written in the image; `text` is the correct answer.

    If the text is part of the prompt, it is at characters `start` to `end` of the prompt.
    """
    return WrittenQuestion(str(number), f"Which words are written? “{text}”", (), text, TEXT_KIND, text, start, end)


def read_pair(pair: Any, number: int, kind: str | None = None) -> WrittenQuestion:
    """Return a [question, answer] pair as a question whose only choice is the correct answer.

    Raise BadQuestionError unless the pair consists of two strings, neither of them blank.
    """
    texts = pair if isinstance(pair, list | tuple) and len(pair) == 2 else ()
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadQuestionError(f"expected a pair [question, answer] of strings, found {parsing.shorten(str(pair))}")
    question, answer = texts
    return WrittenQuestion(str(number), question, (answer,), answer, kind)


def _read_entry(entry: Any, number: int) -> WrittenQuestion:
    """Return an entry of a list as a question; raise BadQuestionError with the entry's number if it cannot be asked."""
    name = f"question {number}"
    try:
        if isinstance(entry, dict):
            question = _read_object(entry, name)
        elif isinstance(entry, str) and entry.strip():
            question = make_text_question(number, entry)._replace(question_id=name)
        else:
            question = read_pair(entry, number)._replace(question_id=name)
        json.dumps(question, ensure_ascii=False).encode()
    except BadQuestionError as error:
        raise BadQuestionError(f"{name}: {error}") from error
    except UnicodeEncodeError as error:
        raise BadQuestionError(f"{name}: expected text, found a lone surrogate; remove it") from error
    return question


def _read_object(entry: Any, name: str) -> WrittenQuestion:
    try:
        listed: ListedQuestion = QUESTION_ADAPTER.validate_python(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise BadQuestionError(f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg']}") from error
    choices = tuple(listed.choices or ())
    if not listed.text.strip() or not all(choice.strip() for choice in choices):
        raise BadQuestionError("expected text in `text` and in each of `choices`, found an empty string")
    if len(set(choices)) < len(choices) or (listed.answer not in choices if choices else listed.answer is not None):
        answer = None if listed.answer is None else parsing.shorten(listed.answer)
        raise BadQuestionError(
            f"expected distinct choices that include the right answer, found {answer} and {[*choices]}"
        )
    name = name if listed.question_id is None else listed.question_id
    return WrittenQuestion(name, listed.text, choices, listed.answer, listed.kind, parents=tuple(listed.parents or ()))
