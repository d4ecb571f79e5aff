"""SeeTRUE: image and text pairs with a binary label, from DrawBench, COCO, EditBench, Winoground and others.

Source: yonatanbitton/SeeTRUE, SeeTRUE.csv (the same file is in linzhiqiu/t2v_metrics) or its Parquet: image (the
file's name), text, label (1 where the text fits the image), original_dataset_id, dataset_source. The text has no id, so
it is its own; `original_dataset_id` tells the pair and not the text. An image may stand with several texts.
"""

from collections.abc import Sequence

import pyarrow as pa

from operators.errors import SourceError
from pipelines.judging.releases.ratings import Rating, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import Location

COLUMNS = ("image", "text", "label", "dataset_source")
ORIGIN = "original_dataset_id"
TEMPLATE = "label"
IMAGE = "image.path"
"""Where the dataset's Parquet has the image itself, with its name beside it."""


def read(location: Location) -> Release:
    """The labels as ratings 0 and 1 of rater 0; a text's skills are the sets it is from.

    A pair that stands there again under another `original_dataset_id` counts as labelled by a further rater.
    """
    sheet = _sheet(location).require(COLUMNS, "is this SeeTRUE's file?")
    ratings = ratings_table(_ratings(sheet))
    again = sum(rater != "0" for rater in ratings.column("rater").to_pylist())
    notes = [f"{again} pairs stand there again under another {ORIGIN}: they count as further raters'"] if again else []
    return Release(ratings=ratings, skills=_skills(sheet), notes=notes)


def _sheet(location: Location) -> Sheet:
    wanted = [*COLUMNS[1:], ORIGIN]
    return read_sheet(location, [IMAGE if location.path.lower().endswith(".parquet") else "image", *wanted])


def _images(sheet: Sheet) -> list[str]:
    column = sheet.table.column("image").combine_chunks()
    if not pa.types.is_struct(column.type):
        return sheet.ids("image")
    if column.type.get_field_index("path") < 0:
        raise SourceError(
            f"{sheet.url}: expected the name of each image as image.path, found none; is this SeeTRUE's file?"
        )
    paths = sheet.table.set_column(sheet.table.column_names.index("image"), "image", column.field("path"))
    return Sheet(url=sheet.url, names=sheet.names, table=paths).ids("image")


def _ratings(sheet: Sheet) -> list[Rating]:
    pairs = list(zip(_images(sheet), sheet.ids("text"), strict=True))
    places: dict[tuple[str, str], dict[str | None, int]] = {}
    found = []
    for row, (pair, label, origin) in enumerate(zip(pairs, _labels(sheet), sheet.texts(ORIGIN), strict=True)):
        known = places.setdefault(pair, {})
        rater = str(known.setdefault(origin, len(known)))
        found.append(Rating(*pair, None, rater, TEMPLATE, label, sheet.where(row)))
    return found


def _labels(sheet: Sheet) -> Sequence[float]:
    labels: list[float] = sheet.numbers("label").to_pylist()
    for row, label in enumerate(labels):
        if label not in (0.0, 1.0):
            raise SourceError(f"{sheet.where(row)}: expected a label of 0 or 1, found {label}; correct or remove it")
    return labels


def _skills(sheet: Sheet) -> dict[str, list[str]]:
    skills: dict[str, list[str]] = {}
    for text, source in zip(sheet.ids("text"), sheet.texts("dataset_source"), strict=True):
        known = skills.setdefault(text, [])
        if source and source not in known:
            known.append(source)
    return skills
