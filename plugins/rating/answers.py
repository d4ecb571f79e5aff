"""One person's answer to a task of a study, and its JSON form."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.web.page_input import is_valid_name
from plumbline.plugins.rating.question_templates import TEMPLATES, find_problem

MAX_NOTE_CHARACTERS = 2000
"""Maximum length of a note in characters."""
TASK_ID_PATTERN = r"[0-9a-f]{16}"
MAX_REPEATS, MAX_REVISIONS = 100, 1000
NonEmptyId = Annotated[str, Field(min_length=1)]
TaskId = Annotated[str, Field(pattern=f"^{TASK_ID_PATTERN}$")]
RepeatNumber = Annotated[int, Field(ge=0, lt=MAX_REPEATS)]
RevisionNumber = Annotated[int, Field(ge=0, lt=MAX_REVISIONS)]
VersionNumber = Annotated[int, Field(ge=1)]
NoteText = Annotated[str, Field(max_length=MAX_NOTE_CHARACTERS)]
Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class BadAnswer(SourceError):
    """Raised for an answer that does not have the expected form."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid"))
class Answer:
    """One person's answer to one task. Its file can be read without any other file of the study."""

    version: VersionNumber
    task_id: TaskId
    template: NonEmptyId
    prompt_id: NonEmptyId
    image_ids: tuple[NonEmptyId, ...]
    generators: tuple[NonEmptyId, ...]
    """Generator of each image."""
    shown: tuple[int, ...]
    """Indices of the images from left to right."""
    repeat: RepeatNumber = 0
    """Number of earlier answers by the same rater to the same task."""
    gold: Any = None
    """The correct answer to a gold question."""
    rater: str
    answer: Any
    """The answer itself; its form depends on `template` (plugins/rating/question_templates.py)."""
    note: NoteText = ""
    seconds: Seconds | None
    """Seconds from when the page was shown to when it was answered; null if another tool did not record them."""
    at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")]
    """Time of the answer in ISO 8601 (UTC)."""


_ANSWER_ADAPTER = TypeAdapter(Answer)


def parse_answer(content: bytes, where: str) -> Answer:
    """Parse the answer in a file; raise BadAnswer with the file, the problem and the remedy."""
    try:
        answer = _ANSWER_ADAPTER.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise BadAnswer(
            f"{where}: not an answer ({field}{': ' * bool(field)}{first['msg']}); {DAMAGED_ANSWER_REMEDY}"
        ) from error
    if (problem := _find_problem(answer)) is not None:
        raise BadAnswer(f"{where}: not an answer ({problem}); {DAMAGED_ANSWER_REMEDY}")
    return answer


DAMAGED_ANSWER_REMEDY = "restore the file, or delete it so that its task is asked again"


def _find_problem(answer: Answer) -> str | None:
    template = TEMPLATES.get(answer.template)
    if template is None:
        return f"template: expected one of {', '.join(TEMPLATES)}, got {answer.template[:80]!r}"
    if len(answer.image_ids) != template.images or len(answer.generators) != template.images:
        return f"image_ids, generators: expected {template.images} of each for {template.name}"
    if sorted(answer.shown) != list(range(template.images)):
        return f"shown: expected the index of each image once, got {list(answer.shown)}"
    if not is_valid_name(answer.rater):
        return f"rater: {answer.rater[:80]!r} is not a valid name"
    gold = None if answer.gold is None else find_problem(template, answer.gold)
    return find_problem(template, answer.answer) or (gold and f"gold {gold}")


def encode_answer(answer: Answer) -> bytes:
    """Encode the answer as a line of JSON."""
    return _ANSWER_ADAPTER.dump_json(answer) + b"\n"
