"""Ratings of one's own, as a long table: one row per rating.

A .parquet, .csv, .tsv or .jsonl file with the columns rating, and image_id or both prompt_id and generator; and, if
they are there, rater, template and skills. What is absent: an image is named `<prompt_id>/<generator>`, the prompt and
the generator are null, the rater is `0`, the template `likert`. `skills` is a list, or text with
semicolons between them.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from operators.errors import SourceError
from pipelines.judging.releases.release import LIKERT, Release, column_ratings, released, skills_of
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import Location
from pipelines.tables import as_list

COLUMNS = ("image_id", "prompt_id", "generator", "rater", "template", "rating", "skills")
NAMED = "name the image by image_id, or by prompt_id and generator"


def read(location: Location) -> Release:
    """The table's ratings and its prompts' skills; an empty rating is a person's being unsure."""
    sheet = read_sheet(location, COLUMNS).require(("rating",), "rename the column that holds the ratings")
    if "image_id" not in sheet.names:
        sheet.require(("prompt_id", "generator"), NAMED)
    prompts, generators = sheet.texts("prompt_id"), sheet.texts("generator")
    ratings = column_ratings(
        sheet,
        list(_images(sheet, prompts, generators)),
        prompts,
        sheet.numbers("rating").to_pylist(),
        generators=generators,
        raters=_or_all(sheet, "rater", "0"),
        templates=_or_all(sheet, "template", LIKERT),
    )
    other = [name for name in sheet.names if name not in COLUMNS]
    notes = [f"column(s) {', '.join(other)} are not read"] if other else []
    return released(ratings=ratings, skills=skills_of(_skills(sheet)), notes=notes)


def _images(sheet: Sheet, prompts: Sequence[str | None], generators: Sequence[str | None]) -> Iterator[str]:
    ids = zip(sheet.texts("image_id"), prompts, generators, strict=True)
    for row, (image_id, prompt_id, generator) in enumerate(ids):
        if image_id is None and (prompt_id is None or generator is None):
            raise SourceError(f"{sheet.where(row)}: no image_id, and not both a prompt_id and a generator; {NAMED}")
        yield image_id or f"{prompt_id}/{generator}"


def _or_all(sheet: Sheet, name: str, default: str) -> Sequence[str]:
    return sheet.ids(name) if name in sheet.names else [default] * len(sheet)


def _skills(sheet: Sheet) -> Iterator[tuple[str | None, str | None]]:
    if "skills" not in sheet.names:
        return
    column = sheet.table.column("skills")
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    cells = column.to_pylist() if is_list else [as_list(text) for text in sheet.texts("skills")]
    for prompt_id, names in zip(sheet.texts("prompt_id"), cells, strict=True):
        yield from ((prompt_id, None if name is None else str(name)) for name in names or [None])
