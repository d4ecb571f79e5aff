"""Packs of requirements for objects: GenEval."""

from collections.abc import Iterator
from typing import Any

from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackLine,
    PackRow,
    PackRows,
    convert_refusal_to_error_row,
    get_label,
    get_required_text,
    read_lines,
    read_rows,
)
from plumbline.plugins.detected_objects.geneval_rules import UnreadableRequirement, read_requirement


def read_geneval(place: Place, convention: Convention) -> PackRows:
    """Read the requirements in evaluation_metadata.jsonl; a prompt's skill is its tag, such as `counting`.

    GenEval (Ghosh, Hajishirzi and Schmidt 2023): 553 prompts about one or two objects, their numbers, colours and
    positions.

    Source: djghosh13/geneval, `prompts/evaluation_metadata.jsonl`. Each line is an object with `tag`, `prompt`,
    `include` and, for counting, `exclude`. Prompts are identified by their row numbers in five digits, as the folders
    of the release's images are named. Both conventions read the file in the same way.
    """
    return read_rows(read_lines(place), _read_prompt)


def _read_prompt(line: PackLine) -> PackRows:
    number = int(line.where.rpartition(" ")[2])
    row = PackRow(line.where, f"{number:05}", get_required_text(line.values, "prompt"))
    return convert_refusal_to_error_row(*row[:3], _make_requirement_rows(row, line.values))


def _make_requirement_rows(row: PackRow, values: Any) -> Iterator[PackRow]:
    tag = get_label(values, "tag")
    clauses = [(clause, False) for clause in _get_clauses(values, "include")]
    clauses += [(clause, True) for clause in _get_clauses(values, "exclude")]
    if tag is None or not clauses:
        raise Refused("no_requirement", "expected 'tag' as text and a list 'include' with an object or more")
    for number, (clause, excluded) in enumerate(clauses):
        try:
            requirement = read_requirement(clause, n_earlier=number, excluded=excluded)
        except UnreadableRequirement as error:
            raise Refused("no_requirement", str(error)) from error
        question = WrittenQuestion(str(number), requirement.write(), (), kind=tag, span=requirement.name)
        yield row._replace(question=question, skills=(tag,))


def _get_clauses(values: Any, name: str) -> list[Any]:
    clauses = values.get(name)
    if clauses is None:
        return []
    if not isinstance(clauses, list):
        raise Refused("no_requirement", f"expected {name!r} as a list, found {type(clauses).__name__}")
    return clauses
