"""DSG-1k (Cho et al. 2024): yes/no questions that depend on each other, about 1,060 prompts.

Source: j-min/DSG, `dsg/data/dsg-1k-anns.csv`. Its loader (`dsg/data_utils.py`) splits a dependency at its commas and
takes the parts for numbers; where one is none (`5, background`, ten of 8,182 rows), all dependencies of that prompt are
lost. So reads `released`; with `fixed` the number counts, and the others' dependencies stay.
"""

from collections.abc import Iterable, Iterator

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.question_packs.pack import Convention, Line, PackRow, PackRows, read_lines, read_rows
from plumbline.pipelines.sources.question_packs.propositions import proposition, told_dependencies, unread_dependencies


def read(place: Place, convention: Convention) -> PackRows:
    """The questions of dsg-1k-anns.csv, in its order."""
    lines = [*read_lines(place)]
    if convention == "fixed":
        yield from told_dependencies(lines, "its words do not count")
        yield from read_rows(lines, proposition)
        return
    yield from told_dependencies(lines, "none of the prompt's questions has parents, as in the release")
    spoiled = {line.values.get("item_id") for line in unread_dependencies(lines)}

    def read_row(line: Line) -> Iterable[PackRow]:
        return _without_parents(proposition(line)) if line.values.get("item_id") in spoiled else proposition(line)

    yield from read_rows(lines, read_row)


def _without_parents(found: Iterable[PackRow]) -> Iterator[PackRow]:
    for row in found:
        yield row._replace(question=row.question._replace(parents=()) if row.question else None)
