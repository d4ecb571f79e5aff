"""Packs of yes/no questions that depend on each other: DPG-Bench (with the columns of DSG-1k) and OneIG-Bench."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, Values, parse_json, read_json
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackRow,
    PackRows,
    abbreviate,
    convert_refusal_to_error_row,
    get_required_text,
    read_lines,
    read_rows,
    read_whole_file,
)
from plumbline.pipelines.sources.question_packs.papers import describe_lost_dependencies, read_proposition


def read_dpg_bench(place: Place, convention: Convention) -> PackRows:
    """Read the questions in dpg_bench.csv, in file order.

    DPG-Bench (Hu et al. 2024): yes/no questions that depend on each other, for about 1,065 long prompts.

    Source: TencentQQGYLab/ELLA, `dpg_bench/dpg_bench.csv` and `dpg_bench/compute_dpg_bench.py`. The release's code
    skips the first row as if it were a header, and so loses the first prompt's first question. It then fails to look up
    the answer to this question for other questions that depend on it, and leaves out the prompt's image. The convention
    `released` reports an error for this prompt; `fixed` reads every row.
    """
    lines = [*read_lines(place)]
    yield from describe_lost_dependencies(lines, "its words do not count")
    found = [*read_rows(lines, read_proposition)]
    first = found[0] if convention == "released" and found else None
    if not isinstance(first, PackRow):
        yield from found
        return
    yield f"{first.where}: left out, as in the release; benchmark.convention=fixed reads it"
    error = RowError(
        "no_questions",
        f"{first.where}: the release skips the row, and fails on the questions of prompt_id "
        f"{first.prompt_id!r} that depend on it; benchmark.convention=fixed reads it",
    )
    yield from _add_first_prompt_error(first, found[1:], error)


def _add_first_prompt_error(first: PackRow, found: Sequence[PackRow | str], error: RowError) -> PackRows:
    """Yield the rows in `found`, preceded by an error for the first prompt if its other questions cannot be scored.

    They cannot be scored if one of them depends on the prompt's first question, which upstream's code skips. The error
    is also added if the prompt has no other question.
    """
    others = [row for row in found if isinstance(row, PackRow) and row.prompt_id == first.prompt_id]
    asked = [row.question for row in others if row.question is not None]
    number = first.question.question_id if first.question is not None else None
    if not asked or any(number in question.parents for question in asked):
        yield first._replace(question=None, error=error)
    yield from found


CATEGORY_BY_CLASS = {
    "anime": "Anime_Stylization",
    "human": "Portrait",
    "object": "General_Object",
    "multilingualism": "Multilingualism",
}
"""Category names used in the CSV, by class of questions."""


def _read_alignment(place: Place, classes: Sequence[str], *, csv: str, prompt: str, suffix: str = "") -> PackRows:
    """Read the questions in scripts/alignment/Q_D, and the texts of their prompts from the column `prompt` of `csv`.

    The id of a prompt consists of its class and its published id, as in `object_000`.
    """
    prompts: dict[tuple[str, str], Values] = {}
    for line in read_lines(_require_file(place / csv)):
        if isinstance(line, str):
            yield line
        else:
            prompts[(str(line.values.get("category")), str(line.values.get("id")))] = line.values
    for name in classes:
        file = _require_file(place / f"scripts/alignment/Q_D/{name}{suffix}.json")
        asked = read_json(read_whole_file(file), file.url)
        if not isinstance(asked, dict):
            raise SourceError(
                f"{file.url}: expected an object that maps ids to questions, found {type(asked).__name__}"
            )
        for number, (key, values) in enumerate(asked.items()):
            where = f"{file.url}, row {number}"
            try:
                row = prompts.get((CATEGORY_BY_CLASS[name], key))
                if row is None:
                    raise Refused("no_prompt", f"{csv} has no prompt {abbreviate(key)} of {CATEGORY_BY_CLASS[name]}")
                text = get_required_text(row, prompt)
            except Refused as refused:
                yield f"{where}: {refused}; the row is left out"
                continue
            questions = _make_alignment_rows(where, f"{name}_{key}", text, values, _list_skills(name, row))
            yield from convert_refusal_to_error_row(where, f"{name}_{key}", text, questions)


def _require_file(file: Place) -> Place:
    if not file.exists():
        raise SourceError(f"{file.url}: not found; set benchmark.questions to the release's folder")
    return file


def _list_skills(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a prompt's skills: its class, followed by its length and type if the row has them."""
    return tuple(skill for skill in (name, row.get("prompt_length"), row.get("type")) if skill)


def _make_alignment_rows(
    where: str, prompt_id: str, text: str, values: Any, skills: tuple[str, ...]
) -> Iterator[PackRow]:
    texts, needed = (_parse_numbered_values(values, field) for field in ("question", "dependency"))
    for number in texts:
        parents = needed.get(number, [0])
        if not isinstance(parents, list) or not all(isinstance(parent, int) for parent in parents):
            raise Refused("no_parents", f"expected a list of numbers in 'dependency', found {abbreviate(parents)}")
        parents = tuple(str(parent) for parent in parents if parent)
        asked = WrittenQuestion(number, get_required_text(texts, number), parsing.YES_NO, "yes", parents=parents)
        yield PackRow(where, prompt_id, text, asked, skills)


def _parse_numbered_values(values: Any, field: str) -> Mapping[str, Any]:
    """Return the values of a field by number. The field is either an object or an object encoded as a JSON string."""
    found = values.get(field) if isinstance(values, dict) else None
    found = parse_json(found) if isinstance(found, str) else found
    if not isinstance(found, dict) or not found:
        raise Refused(
            "no_questions",
            f"expected {field!r} as an object with a number for each key, found {abbreviate(found)}",
        )
    return found


def read_oneig(place: Place, convention: Convention) -> PackRows:
    """Read the questions about the English prompts.

    The alignment subset of OneIG-Bench, in English (Chang et al. 2025): yes/no questions that depend on each other.

    Source: OneIG-Bench/OneIG-Benchmark, the folder with `OneIG-Bench.csv` and
    `scripts/alignment/Q_D/{anime,human,object}.json`; `scripts/alignment/alignment_score.py` counts a yes only if all
    of the question's parents are answered yes. Both conventions read it in the same way.
    """
    return _read_alignment(place, ("anime", "human", "object"), csv="OneIG-Bench.csv", prompt="prompt_en")


def read_oneig_zh(place: Place, convention: Convention) -> PackRows:
    """Read the questions about the Chinese prompts.

    The alignment subset of OneIG-Bench, in Chinese (Chang et al. 2025): the same classes as in English, and a class
    for multilingualism.

    Source: OneIG-Bench/OneIG-Benchmark, the folder with `OneIG-Bench-ZH.csv` and `scripts/alignment/Q_D/*_zh.json`. The
    questions are in Chinese too, but the answers are Yes or No. Both conventions read it in the same way.
    """
    return _read_alignment(place, tuple(CATEGORY_BY_CLASS), csv="OneIG-Bench-ZH.csv", prompt="prompt_cn", suffix="_zh")
