"""One person's answer to a task of a study, and its form as JSON."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.web.person_names import is_clean
from plumbline.plugins.rating.question_templates import TEMPLATES, what_is_wrong

LONGEST_NOTE = 2000
TASK_ID = r"[0-9a-f]{16}"
MOST_REPEATS, MOST_REVISIONS = 100, 1000
Id = Annotated[str, Field(min_length=1)]
TaskId = Annotated[str, Field(pattern=f"^{TASK_ID}$")]
Repeat = Annotated[int, Field(ge=0, lt=MOST_REPEATS)]
RevisionNumber = Annotated[int, Field(ge=0, lt=MOST_REVISIONS)]
Version = Annotated[int, Field(ge=1)]
Note = Annotated[str, Field(max_length=LONGEST_NOTE)]
Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class BadAnswer(SourceError):
    """An answer is not of its form."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid"))
class Answer:
    """What one person said of one task; it holds all that is needed to read it without the study's other files."""

    version: Version
    """Of the study that asked."""
    task_id: TaskId
    template: Id
    prompt_id: Id
    image_ids: tuple[Id, ...]
    generators: tuple[Id, ...]
    """Of the images, in their order."""
    shown: tuple[int, ...]
    """The images by their places in `image_ids`, from left to right as they were shown."""
    repeat: Repeat = 0
    """How often the same rater had been asked the same before."""
    gold: Any = None
    """The right answer, where the task has one."""
    rater: str
    answer: Any
    """As `template` takes it (plugins/rating/question_templates.py)."""
    note: Note = ""
    seconds: Seconds | None
    """From when the page was shown to when the answer was given; null where another tool does not say."""
    at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")]
    """When it was given: ISO 8601, in UTC."""


_ANSWER = TypeAdapter(Answer)


def parse_answer(content: bytes, where: str) -> Answer:
    """The answer that a file holds; raises BadAnswer naming the file, what is wrong in it and the remedy."""
    try:
        answer = _ANSWER.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise BadAnswer(f"{where}: not an answer ({field}{': ' * bool(field)}{first['msg']}); {REMEDY}") from error
    if (problem := _problem(answer)) is not None:
        raise BadAnswer(f"{where}: not an answer ({problem}); {REMEDY}")
    return answer


REMEDY = "restore the file, or delete it: its task is asked again"


def _problem(answer: Answer) -> str | None:
    template = TEMPLATES.get(answer.template)
    if template is None:
        return f"template: expected one of {', '.join(TEMPLATES)}, got {answer.template[:80]!r}"
    if len(answer.image_ids) != template.images or len(answer.generators) != template.images:
        return f"image_ids, generators: expected {template.images} of each for {template.name}"
    if sorted(answer.shown) != list(range(template.images)):
        return f"shown: expected the images' places, each once, got {list(answer.shown)}"
    if not is_clean(answer.rater):
        return f"rater: {answer.rater[:80]!r} is not a name that a rater may have"
    gold = None if answer.gold is None else what_is_wrong(template, answer.gold)
    return what_is_wrong(template, answer.answer) or (gold and f"gold {gold}")


def encode_answer(answer: Answer) -> bytes:
    """The answer as a line of JSON."""
    return _ANSWER.dump_json(answer) + b"\n"
