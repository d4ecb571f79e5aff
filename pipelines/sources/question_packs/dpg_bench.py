"""DPG-Bench (Hu et al. 2024): yes/no questions that depend on each other, about 1,065 long prompts.

Source: TencentQQGYLab/ELLA, `dpg_bench/dpg_bench.csv` and `dpg_bench/compute_dpg_bench.py`. That code skips the
file's first row, which is no header any more, so that the first prompt has no question of that number; looking for the
answer to it as a parent fails, and the prompt's image is left out. So reads `released`, with an error in place of the
prompt's questions; `fixed` reads every row.
"""

from collections.abc import Sequence

from plumbline.operators.errors import RowError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.question_packs.pack import Convention, PackRow, PackRows, read_lines, read_rows
from plumbline.pipelines.sources.question_packs.propositions import proposition, told_dependencies


def read(place: Place, convention: Convention) -> PackRows:
    """The questions of dpg_bench.csv, in its order."""
    lines = [*read_lines(place)]
    yield from told_dependencies(lines, "its words do not count")
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
