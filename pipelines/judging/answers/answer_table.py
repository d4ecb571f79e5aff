"""What VQA models answered about images, and how any table of such answers is read."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from plumbline.operators.errors import ConfigError, SourceError
from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.sheets import Sheet, read_sheet


class Answer(NamedTuple):
    """One answer about an image."""

    metric: str
    """Which model answered, by the name that its scores get."""
    image_id: str
    prompt_id: str | None
    generator: str | None
    question_id: str
    right: bool | None
    """None where there is no answer."""
    parents: Sequence[str]
    """The questions that must hold for this one."""
    where: str
    """The file and row."""


class Answered(NamedTuple):
    """All answers of a release, in its order."""

    answers: Sequence[Answer]
    notes: Sequence[str] = ()
    """What is read otherwise than it stands, in words."""


Found = TypeVar("Found")


def select_models(found: Mapping[str, Found], given: Collection[str], where: str) -> dict[str, Found]:
    """What is there of the models asked for, of all where none are; raises ConfigError for one that is not there."""
    for name in given:
        if name not in found:
            raise ConfigError(f"given: {where} has no answers of {name!r}; there are {', '.join(found) or 'none'}")
    return {name: found[name] for name in given} if given else dict(found)


TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerColumns:
    """What the columns of the answers are called."""

    image_id: str = "image_id"
    """The image's own name."""
    prompt_id: str = "prompt_id"
    """The prompt that the image was made of."""
    generator: str = "generator"
    """What made the image; may be absent."""
    question_id: str = "question_id"
    """The question's own name."""
    parents: str = "parents"
    """The questions that must hold for this one; may be absent."""
    answer: str | None = None
    """The right answers, that those given are compared with; null where these say themselves whether they are right
    (1 or 0, true or false)."""


def read_table(
    place: Place, given: Sequence[str], columns: AnswerColumns, *, separator: str, no_parent: str
) -> Answered:
    """The answers of the columns `given`; raises SourceError naming the file and the row."""
    sheet = read_sheet(place)
    needed = [columns.image_id, columns.question_id, *given, *([columns.answer] if columns.answer else [])]
    sheet.require(needed, "set columns and given to what the file calls them")
    ids = list(
        zip(
            sheet.ids(columns.image_id),
            sheet.texts(columns.prompt_id),
            sheet.texts(columns.generator),
            sheet.ids(columns.question_id),
            strict=True,
        )
    )
    parents = [split_parents(text, separator, no_parent) for text in sheet.texts(columns.parents)]
    return Answered(
        [
            Answer(metric, *ids[row], right, parents[row], sheet.where(row))
            for metric in given
            for row, right in enumerate(_right(sheet, metric, columns.answer))
        ]
    )


def split_parents(text: str | None, separator: str, no_parent: str) -> list[str]:
    """The parents that a cell names."""
    return [] if text is None or text == no_parent else [name.strip() for name in text.split(separator)]


def truth_of(sheet: Sheet, name: str, remedy: str) -> Iterator[bool | None]:
    """Of every row whether a column says that the answer is right; None where it says nothing."""
    for row, given in enumerate(sheet.texts(name)):
        if given is not None and given.strip().casefold() not in TRUTH:
            raise SourceError(f"{sheet.where(row)}: expected 1 or 0 as {name}, found {given!r}; {remedy}")
        yield None if given is None else TRUTH[given.strip().casefold()]


def _right(sheet: Sheet, metric: str, answer: str | None) -> Iterator[bool | None]:
    """Of every row whether the answer is right; None where there is none."""
    if answer is None:
        yield from truth_of(sheet, metric, "name the column of right answers by columns.answer")
        return
    for given, right in zip(sheet.texts(metric), sheet.texts(answer), strict=True):
        yield None if given is None else right is not None and parsing.key(given) == parsing.key(right)
