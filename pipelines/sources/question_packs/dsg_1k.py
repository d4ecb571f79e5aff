"""DSG-1k (Cho et al. 2024): yes/no questions that depend on each other, about 1,060 prompts.

Source: j-min/DSG, `dsg/data/dsg-1k-anns.csv`. Its loader (`dsg/data_utils.py`) splits a dependency at its commas and
takes the parts for numbers; where one is none (`5, background`, ten of 8,182 rows), all dependencies of that prompt are
lost. So reads `released`; with `fixed` the number counts, and the others' dependencies stay.
"""

from collections.abc import Iterable, Iterator

from pipelines.sources.question_packs.pack import Convention, Line, PackRow, PackRows, read_lines, read_rows
from pipelines.sources.question_packs.propositions import NUMBERS, dependency, proposition
from pipelines.storage import Location


def read(place: Location, convention: Convention) -> PackRows:
    """The questions of dsg-1k-anns.csv, in its order."""
    lines = [line for line in read_lines(place) if isinstance(line, Line)]
    unread = [line for line in lines if not NUMBERS.fullmatch(dependency(line.values))]
    effect = "its words do not count"
    if convention == "released":
        effect = "none of the prompt's questions has parents, as in the release"
    for line in unread:
        yield f"{line.where}: the dependency {dependency(line.values)!r} is not all numbers; {effect}"
    spoiled = {line.values.get("item_id") for line in unread} if convention == "released" else set()

    def read_row(line: Line) -> Iterable[PackRow]:
        return _without_parents(proposition(line)) if line.values.get("item_id") in spoiled else proposition(line)

    yield from read_rows(place, read_row)


def _without_parents(found: Iterable[PackRow]) -> Iterator[PackRow]:
    for row in found:
        yield row._replace(question=row.question._replace(parents=()) if row.question else None)
