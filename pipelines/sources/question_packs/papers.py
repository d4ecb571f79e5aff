"""Question packs from two papers: TIFA v1.0's multiple-choice questions, and DSG-1k's questions with dependencies."""

import re
from collections.abc import Iterable, Iterator

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackLine,
    PackRow,
    PackRows,
    abbreviate,
    get_label,
    get_required_id,
    get_required_text,
    get_texts,
    read_lines,
    read_rows,
)

TOO_LONG_NUMBER_PATTERN = re.compile(r"\d{10}")
DEPENDENCIES_PATTERN = re.compile(r"\s*-?\d+\s*(,\s*-?\d+\s*)*")
"""Pattern of the dependencies that the release's own code can read."""


def read_tifa_v1(place: Place, convention: Convention) -> PackRows:
    """Read the questions of tifa_v1.0_question_answers.json in file order.

    TIFA v1.0 (Hu et al. 2023): multiple-choice questions about 4,081 prompts.

    Source: Yushi-Hu/tifa, `tifa_v1.0/tifa_v1.0_question_answers.json`: a list of questions, each with the `id` and the
    `caption` of its prompt, `choices`, `answer`, `element` and `element_type`. A question that occurs twice counts
    twice, as in `tifascore/tifa_score.py`.
    """
    return read_rows(read_lines(place), _read_multiple_choice)


def _read_multiple_choice(line: PackLine) -> Iterator[PackRow]:
    values = line.values
    choices, answer = get_texts(values.get("choices"), "choices"), get_required_text(values, "answer")
    if answer not in choices or len(set(choices)) < 2:
        found = f"found {abbreviate(list(choices))}"
        raise Refused("no_choice", f"expected the answer {abbreviate(answer)} among at least two choices, {found}")
    asked = WrittenQuestion(
        question_id=line.where,
        text=get_required_text(values, "question"),
        choices=choices,
        answer=answer,
        kind=get_label(values, "element_type"),
        span=get_label(values, "element"),
    )
    yield PackRow(line.where, get_required_id(values, "id"), get_required_text(values, "caption"), asked)


def read_proposition(line: PackLine) -> Iterator[PackRow]:
    """Read a row with `item_id`, `text`, `proposition_id`, `dependency`, `tuple` and `question_natural_language`.

    In a dependency such as `5, background`, only the number is used; 0 or an empty cell means no parents.
    """
    values = line.values
    number, dependency = get_required_id(values, "proposition_id"), get_label(values, "dependency") or "0"
    if not number.isdecimal() or TOO_LONG_NUMBER_PATTERN.search(number):
        raise Refused("no_id", f"expected 'proposition_id' as a number, found {abbreviate(number)}")
    text, category = get_required_text(values, "question_natural_language"), get_label(values, "tuple") or ""
    keywords = get_label(values, "keywords")
    if TOO_LONG_NUMBER_PATTERN.search(dependency):
        raise Refused("no_parents", f"expected question numbers in 'dependency', found {abbreviate(dependency)}")
    asked = WrittenQuestion(
        question_id=str(int(number)),
        text=text,
        choices=parsing.YES_NO,
        answer="yes",
        kind=category.split("(")[0].strip() or None,  # a tuple is `attribute - color (car, red)`
        span=keywords,
        parents=tuple(map(str, parsing.read_parents(dependency) or ())),
    )
    yield PackRow(line.where, get_required_id(values, "item_id"), get_required_text(values, "text"), asked)


def _find_lost_dependencies(lines: Iterable[PackLine | str]) -> list[PackLine]:
    """Return the rows whose dependencies are not all numbers; the release's own code cannot read them."""
    rows = (line for line in lines if isinstance(line, PackLine))
    return [line for line in rows if not DEPENDENCIES_PATTERN.fullmatch(str(line.values.get("dependency") or "0"))]


def describe_lost_dependencies(lines: Iterable[PackLine | str], effect: str) -> Iterator[str]:
    """Yield a line for each row whose dependencies are not all numbers; `effect` describes the consequence."""
    for line in _find_lost_dependencies(lines):
        found = abbreviate(line.values.get("dependency"))
        yield f"{line.where}: the dependency {found} is not all numbers; {effect}"


def read_dsg_1k(place: Place, convention: Convention) -> PackRows:
    """Read the questions of dsg-1k-anns.csv in file order.

    DSG-1k (Cho et al. 2024): yes/no questions that depend on each other, about 1,060 prompts.

    Source: j-min/DSG, `dsg/data/dsg-1k-anns.csv`. Its loader (`dsg/data_utils.py`) splits a dependency at its commas
    and converts the fragments to integers. If one is not an integer (`5, background`, in ten of 8,182 rows), all
    dependencies of that prompt are lost. `released` does the same; `fixed` uses the integer and keeps the other
    dependencies.
    """
    lines = [*read_lines(place)]
    if convention == "fixed":
        yield from describe_lost_dependencies(lines, "its words do not count")
        yield from read_rows(lines, read_proposition)
        return
    yield from describe_lost_dependencies(lines, "none of the prompt's questions has parents, as in the release")
    without_parents = {str(line.values.get("item_id")) for line in _find_lost_dependencies(lines)}

    def read_row(line: PackLine) -> Iterator[PackRow]:
        for row in read_proposition(line):
            loses_parents = row.question is not None and str(line.values.get("item_id")) in without_parents
            yield row._replace(question=row.question._replace(parents=())) if loses_parents and row.question else row

    yield from read_rows(lines, read_row)
