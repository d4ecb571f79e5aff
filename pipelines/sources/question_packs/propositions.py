"""DSG-1k's and DPG-Bench's questions, whose files have the same columns: yes/no questions that depend on each other."""

import re
from collections.abc import Iterable, Iterator, Sequence

from plumbline.operators.errors import RowError
from plumbline.operators.metrics import reading
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, Values
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    Line,
    PackRow,
    PackRows,
    read_lines,
    read_rows,
    the_id,
    the_text,
)

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


def dependency_notes(lines: Iterable[Line | str], effect: str) -> Iterator[str]:
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


def read_dsg_1k(place: Place, convention: Convention) -> PackRows:
    """The questions of dsg-1k-anns.csv, in its order.

    DSG-1k (Cho et al. 2024): yes/no questions that depend on each other, about 1,060 prompts.

    Source: j-min/DSG, `dsg/data/dsg-1k-anns.csv`. Its loader (`dsg/data_utils.py`) splits a dependency at its commas
    and takes the parts for numbers; where one is none (`5, background`, ten of 8,182 rows), all dependencies of that
    prompt are lost. So reads `released`; with `fixed` the number counts, and the others' dependencies stay.
    """
    lines = [*read_lines(place)]
    if convention == "fixed":
        yield from dependency_notes(lines, "its words do not count")
        yield from read_rows(lines, proposition)
        return
    yield from dependency_notes(lines, "none of the prompt's questions has parents, as in the release")
    spoiled = {line.values.get("item_id") for line in unread_dependencies(lines)}

    def read_row(line: Line) -> Iterable[PackRow]:
        return _without_parents(proposition(line)) if line.values.get("item_id") in spoiled else proposition(line)

    yield from read_rows(lines, read_row)


def _without_parents(found: Iterable[PackRow]) -> Iterator[PackRow]:
    for row in found:
        yield row._replace(question=row.question._replace(parents=()) if row.question else None)


def read_dpg_bench(place: Place, convention: Convention) -> PackRows:
    """The questions of dpg_bench.csv, in its order.

    DPG-Bench (Hu et al. 2024): yes/no questions that depend on each other, about 1,065 long prompts.

    Source: TencentQQGYLab/ELLA, `dpg_bench/dpg_bench.csv` and `dpg_bench/compute_dpg_bench.py`. That code skips the
    file's first row, which is no header any more, so that the first prompt has no question of that number; looking for
    the answer to it as a parent fails, and the prompt's image is left out. So reads `released`, with an error in place
    of the prompt's questions; `fixed` reads every row.
    """
    lines = [*read_lines(place)]
    yield from dependency_notes(lines, "its words do not count")
    found = [*read_rows(lines, proposition)]
    first = found[0] if convention == "released" and found else None
    if not isinstance(first, PackRow):
        yield from found
        return
    yield f"{first.where}: left out, as in the release; benchmark.convention=fixed reads it"
    error = RowError(
        "no_questions",
        f"{first.where}: the release does not read the row, and fails on the questions of prompt_id "
        f"{first.prompt_id!r} that depend on it; benchmark.convention=fixed reads it",
    )
    yield from _spoiled(first, found[1:], error)


def _spoiled(first: PackRow, found: Sequence[PackRow | str], error: RowError) -> PackRows:
    """The rows without the first, and with an error where its prompt's others cannot be answered without it."""
    others = [row for row in found if isinstance(row, PackRow) and row.prompt_id == first.prompt_id]
    asked = [row.question for row in others if row.question is not None]
    number = first.question.question_id if first.question is not None else None
    if not asked or any(number in question.parents for question in asked):
        yield first._replace(question=None, error=error)
    yield from found
