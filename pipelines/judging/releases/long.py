"""Ratings of one's own, as a long table: one row per rating.

A .parquet, .csv, .tsv or .jsonl file with the columns rating, and image_id or both prompt_id and generator; and, if
they are there, rater, template and skills. What is absent: an image is named `<prompt_id>/<generator>`, the prompt and
the generator are null, the rater is `0`, the template `likert`. `skills` is a list, or text that is one skill.
"""

from collections.abc import Sequence

import pyarrow as pa

from operators.errors import SourceError
from pipelines.judging.releases.ratings import LIKERT, Rating, empty_notes, rating_value, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import Location

COLUMNS = ("image_id", "prompt_id", "generator", "rater", "template", "rating", "skills")
NAMED = "name the image by image_id, or by prompt_id and generator"


def read(location: Location) -> Release:
    """The table's ratings and its prompts' skills; an empty rating is a person's being unsure."""
    sheet = read_sheet(location, COLUMNS).require(("rating",), "rename the column that holds the ratings")
    if "image_id" not in sheet.names:
        sheet.require(("prompt_id", "generator"), NAMED)
    ratings = ratings_table(_ratings(sheet))
    other = [name for name in sheet.names if name not in COLUMNS]
    notes = [f"column(s) {', '.join(other)} are not read"] if other else []
    return Release(ratings=ratings, skills=_skills(sheet), notes=[*empty_notes(ratings), *notes])


def _ratings(sheet: Sheet) -> list[Rating]:
    prompts, generators = sheet.texts("prompt_id"), sheet.texts("generator")
    raters, templates = (_or_all(sheet, *one) for one in (("rater", "0"), ("template", LIKERT)))
    images, values = sheet.texts("image_id"), sheet.numbers("rating").to_pylist()
    return [
        Rating(
            images[row] or _image(prompts[row], generators[row], sheet.where(row)),
            prompts[row],
            generators[row],
            raters[row],
            templates[row],
            rating_value(values[row], sheet.where(row)),
            sheet.where(row),
        )
        for row in range(len(sheet))
    ]


def _or_all(sheet: Sheet, name: str, default: str) -> Sequence[str]:
    return sheet.ids(name) if name in sheet.names else [default] * len(sheet)


def _image(prompt_id: str | None, generator: str | None, where: str) -> str:
    if prompt_id is None or generator is None:
        raise SourceError(f"{where}: no image_id, and not both a prompt_id and a generator; {NAMED}")
    return f"{prompt_id}/{generator}"


def _skills(sheet: Sheet) -> dict[str, list[str]]:
    if "skills" not in sheet.names:
        return {}
    column = sheet.table.column("skills")
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    cells = column.to_pylist() if is_list else [[text] if text else [] for text in sheet.texts("skills")]
    skills: dict[str, list[str]] = {}
    for prompt_id, names in zip(sheet.texts("prompt_id"), cells, strict=True):
        if prompt_id is not None:
            known = skills.setdefault(prompt_id, [])
            known.extend(str(name) for name in names or () if str(name) not in known)
    return skills
