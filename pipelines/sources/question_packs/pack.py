"""A benchmark's own questions in memory, and functions shared by the readers of released files."""

import io
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import (
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    Refused,
    Rejection,
    Row,
    Values,
    read_csv,
    read_json,
    read_json_lines,
)

MAX_PACK_BYTES = 256 * 2**20
MAX_LABEL_CHARACTERS = 1000
"""Maximum number of characters in an id, a skill or a question type."""
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxlevel, _SHORT_REPR.maxstring = 3, 80

Convention = Literal["released", "fixed"]
"""`released` reads a pack as its release's own code does, bugs included; `fixed` reads it as intended."""


class PackRow(NamedTuple):
    """A row of a released file, as returned by its reader."""

    where: str
    """The file, and the row's number counted from 0."""
    prompt_id: str
    text: str
    """The prompt."""
    question: WrittenQuestion | None = None
    """The question, with its own id and its parents' ids as in the file."""
    skills: tuple[str, ...] = ()
    """Skills of the prompt."""
    error: RowError | None = None
    """Reason why no question can be asked about the prompt."""


PackRows = Iterator[PackRow | str]
"""Rows of a release; an unreadable row is replaced by a text with the file, the row number and the reason."""
PackReader = Callable[[Place, Convention], PackRows]
"""Function that reads a released file or folder."""


class QuestionPack(NamedTuple):
    """A benchmark's own questions."""

    prompts: pa.Table
    """Prompts in the schema PROMPTS."""
    questions: pa.Table
    """Questions in the schema QUESTIONS."""
    problems: tuple[str, ...]
    """A message for each row that could not be read, or was not read literally."""
    places: dict[str, str]
    """File and row of each prompt's first occurrence, by prompt_id."""

    @property
    def choices(self) -> frozenset[int]:
        sound = self.questions.filter(self.questions.column("error").is_null())
        return frozenset(map(len, sound.column("choices").to_pylist()))


@dataclass(slots=True)
class _Prompt:
    where: str
    text: str
    skills: tuple[str, ...]
    questions: dict[str, WrittenQuestion] = field(default_factory=dict)
    error: RowError | None = None


def gather_questions(found: Iterable[PackRow | str], suite: str) -> QuestionPack:
    """Return the question pack that the rows form, grouped by prompt in file order.

    If several questions of a prompt have the same id, the last one is used; a parent that is not among the questions is
    dropped.
    """
    prompts: dict[str, _Prompt] = {}
    problems: list[str] = []
    for row in found:
        if isinstance(row, str):
            problems.append(row)
            continue
        prompt = prompts.setdefault(row.prompt_id, _Prompt(row.where, row.text, row.skills))
        prompt.error = prompt.error or row.error
        if prompt.text != row.text:
            problems.append(
                f"{row.where}: prompt_id {abbreviate(row.prompt_id)} has a different text in {prompt.where}; the "
                "question is left out; make ids unique"
            )
        elif row.question is not None:
            if row.question.question_id in prompt.questions:
                problems.append(
                    f"{row.where}: question {abbreviate(row.question.question_id)} occurs twice; the last one counts"
                )
            prompt.questions[row.question.question_id] = row.question
    question_rows = [row for name, prompt in prompts.items() for row in _make_question_rows(name, prompt)]
    prompt_rows = [
        {"prompt_id": name, "text": prompt.text, "skills": list(prompt.skills), "suite": suite}
        for name, prompt in prompts.items()
    ]
    return QuestionPack(
        prompts=rows.table(prompt_rows, schemas.PROMPTS),
        questions=rows.table(question_rows, schemas.QUESTIONS),
        problems=tuple(problems),
        places={name: prompt.where for name, prompt in prompts.items()},
    )


def _make_question_rows(prompt_id: str, prompt: _Prompt) -> list[dict[str, Any]]:
    """Return a row per question of a prompt, or one row with the error if the prompt has no questions."""
    own = {"prompt_id": prompt_id, "prompt": prompt.text}
    error = prompt.error
    if error is None and not prompt.questions:
        error = RowError("no_questions", f"{prompt.where}: no question about the prompt can be read; correct the file")
    if error is not None:
        return [{**own, "error": rows.error_to_dict(error)}]
    asked: list[WrittenQuestion] = []
    for question in prompt.questions.values():
        start, end = (parsing.find_words(question.span, prompt.text) if question.span else None) or (None, None)
        parents = tuple(parent for parent in question.parents if parent in prompt.questions)
        asked.append(question._replace(parents=parents, start=start, end=end))
    return [{**own, **question._asdict()} for question in assign_ids(asked)]


class PackLine(NamedTuple):
    """A row of a released file that its reader has not checked yet."""

    where: str
    values: Values


def convert_refusal_to_error_row(where: str, prompt_id: str, text: str, questions: Iterable[PackRow]) -> PackRows:
    """Yield a prompt's questions; if reading them raises Refused, yield a message and a row with the error instead."""
    try:
        yield from questions
    except Refused as refused:
        yield f"{where}: {refused}; nothing is asked about prompt_id {abbreviate(prompt_id)}"
        yield PackRow(where, prompt_id, text, error=RowError("no_questions", f"{where}: {refused}"))


def read_rows(lines: Iterable[PackLine | str], read: Callable[[PackLine], Iterable[PackRow | str]]) -> PackRows:
    """Yield the rows that `read` returns for each line; if it raises Refused, yield a line with the reason."""
    for line in lines:
        if isinstance(line, str):
            yield line
            continue
        try:
            yield from read(line)
        except Refused as refused:
            yield f"{line.where}: {refused}; the row is left out"


def read_whole_file(file: Place) -> bytes:
    """Return the bytes of a released file; raise SourceError if it is too large."""
    content = file.read(MAX_PACK_BYTES + 1)
    if len(content) > MAX_PACK_BYTES:
        raise SourceError(
            f"{file.url}: over {MAX_PACK_BYTES // 2**20} MiB; check that this is the question file from the "
            "benchmark's release"
        )
    return content


def read_lines(file: Place) -> Iterator[PackLine | str]:
    """Yield the rows of a CSV, TSV or JSON Lines file, or of a list in a JSON file.

    For a row that cannot be read, yield a message instead.
    """
    content = read_whole_file(file)
    suffix = PurePosixPath(file.path).suffix.lower()
    if suffix in SEPARATORS_BY_SUFFIX:
        found: Iterable[Row | Rejection] = read_csv(io.BytesIO(content), file.url).rows
    elif suffix in JSON_LINES_SUFFIXES:
        found = read_json_lines(io.BytesIO(content), file.url)
    else:
        found = _read_json_list(content, file)
    for number, row in enumerate(found):
        where = f"{file.url}, row {number}"
        if isinstance(row, Rejection):
            yield f"{where}: {row.message}; the row is left out"
        else:
            yield PackLine(where, row.values)


def _read_json_list(content: bytes, file: Place) -> Iterator[Row | Rejection]:
    listed = read_json(content, file.url)
    if not isinstance(listed, list):
        found = type(listed).__name__
        raise SourceError(f"{file.url}: expected a list of objects, found {found}; check that this is the right file")
    for number, value in enumerate(listed):
        problem = f"expected an object, found {type(value).__name__}"
        yield Row(number, value) if isinstance(value, dict) else Rejection(file.url, None, "unreadable_json", problem)


def get_required_id(values: Values, name: str) -> str:
    """Return a row's id as text; raise Refused if it is missing."""
    found = get_label(values, name)
    if found is None:
        raise Refused("no_id", f"expected {name!r} as text or a number, found {abbreviate(values.get(name))}")
    return found


def get_required_text(values: Values, name: str) -> str:
    """Return a row's text unchanged; raise Refused if it is missing."""
    value = values.get(name)
    if not isinstance(value, str) or not value.strip():
        raise Refused("no_text", f"expected {name!r} as text, found {abbreviate(value)}")
    return value


def get_label(values: Values, name: str) -> str | None:
    """Return a row's text or number as text, or None if it is missing or blank; raise Refused for other values."""
    value = values.get(name)
    text = "" if rows.is_missing(value) else str(value) if isinstance(value, str | int | float) else None
    if text is None or isinstance(value, bool) or len(text) > MAX_LABEL_CHARACTERS:
        expected = f"text of at most {MAX_LABEL_CHARACTERS} characters or a number"
        raise Refused("no_text", f"expected {name!r} as {expected}, found {abbreviate(value)}")
    return text if text.strip() else None


def abbreviate(value: Any) -> str:
    """Return a value as text for a message; deeply nested values are abbreviated."""
    return parsing.shorten(value if isinstance(value, str) else _SHORT_REPR.repr(value))


def get_texts(value: Any, name: str) -> tuple[str, ...]:
    """Return a list of strings, which may be empty, as a tuple; raise Refused for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(text, str) for text in value):
        raise Refused("no_list", f"expected {name!r} as a list of texts, found {abbreviate(value)}")
    return tuple(value)
