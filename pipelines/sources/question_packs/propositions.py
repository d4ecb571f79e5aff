"""The layout that DSG-1k and DPG-Bench share: a CSV row for each proposition, a yes/no question with its parents."""

import re
from collections.abc import Iterable, Iterator

from plumbline.operators.metrics import reading
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.tables import Refused, Values
from plumbline.pipelines.sources.question_packs.pack import Line, PackRow, the_id, the_text

NUMBERS = re.compile(r"\s*-?\d+\s*(,\s*-?\d+\s*)*")
"""What the releases' code reads a dependency of."""


def proposition(line: Line) -> Iterator[PackRow]:
    """A row with `item_id`, `text`, `proposition_id`, `dependency`, `tuple` and `question_natural_language`.

    Of a dependency such as `5, background` the number counts.
    """
    values = line.values
    asked = WrittenQuestion(
        question_id=_number(values),
        text=the_text(values, "question_natural_language"),
        choices=reading.YES_NO,
        answer="yes",
        kind=category(values),
        span=values.get("keywords") or None,
        parents=tuple(map(str, reading.named_parents(dependency(values)) or ())),
    )
    yield PackRow(line.where, the_id(values, "item_id"), the_text(values, "text"), asked)


def unread_dependencies(lines: Iterable[Line | str]) -> list[Line]:
    """The rows whose parents are not all numbers."""
    rows = (line for line in lines if isinstance(line, Line))
    return [line for line in rows if not NUMBERS.fullmatch(dependency(line.values))]


def told_dependencies(lines: Iterable[Line | str], effect: str) -> Iterator[str]:
    """A line for each of them."""
    for line in unread_dependencies(lines):
        yield f"{line.where}: the dependency {dependency(line.values)!r} is not all numbers; {effect}"


def dependency(values: Values) -> str:
    """What a row says of its parents; 0 where it says nothing."""
    return str(values.get("dependency") or "0")


def category(values: Values) -> str | None:
    """What stands before the bracket of a tuple: `attribute - color`."""
    return str(values.get("tuple") or "").split("(")[0].strip() or None


def _number(values: Values) -> str:
    found = the_id(values, "proposition_id")
    if not found.isdecimal():
        raise Refused("no_id", f"expected 'proposition_id' as a number, found {reading.shown(found)}")
    return str(int(found))
