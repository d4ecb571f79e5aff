"""SeeTRUE: image and text pairs with a binary label, from DrawBench, COCO, EditBench, Winoground and others.

Source: yonatanbitton/SeeTRUE, SeeTRUE.csv (the same file is in linzhiqiu/t2v_metrics) or its Parquet: image (the
file's name), text, label (1 where the text fits the image), original_dataset_id, dataset_source. The text has no id, so
it is its own; `original_dataset_id` tells the pair and not the text. An image may stand with several texts.
"""

from dataclasses import replace

import pyarrow as pa

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, column_ratings, released, skills_of
from plumbline.pipelines.judging.releases.sheets import Sheet, read_sheet

COLUMNS = ("image", "text", "label", "dataset_source")
ORIGIN = "original_dataset_id"
IMAGE = "image.path"
"""Where the dataset's Parquet has the image itself, with its name beside it."""
OURS = "is this SeeTRUE's file?"


def read(place: Place) -> Release:
    """The labels as ratings 0 and 1 of rater 0; a text's skills are the sets it is from.

    A pair that stands there again under another `original_dataset_id` counts as labelled by a further rater.
    """
    image = IMAGE if place.path.lower().endswith(".parquet") else "image"
    sheet = _with_names(read_sheet(place, [image, *COLUMNS[1:], ORIGIN]).require(COLUMNS, OURS))
    images, texts = sheet.ids("image"), sheet.ids("text")
    raters = _raters(list(zip(images, texts, strict=True)), sheet.texts(ORIGIN))
    ratings = column_ratings(sheet, images, texts, _labels(sheet), raters=raters, templates=["label"] * len(sheet))
    again = sum(rater != "0" for rater in raters)
    notes = [f"{again} pairs stand there again under another {ORIGIN}: they count as further raters'"] if again else []
    skills = skills_of(zip(texts, sheet.texts("dataset_source"), strict=True))
    return released(ratings=ratings, skills=skills, notes=notes)


def _with_names(sheet: Sheet) -> Sheet:
    """The table with the images' names where it has the images themselves."""
    column = sheet.table.column("image").combine_chunks()
    if not pa.types.is_struct(column.type):
        return sheet
    if column.type.get_field_index("path") < 0:
        raise SourceError(f"{sheet.url}: expected the name of each image as image.path, found none; {OURS}")
    index = sheet.table.column_names.index("image")
    return replace(sheet, table=sheet.table.set_column(index, "image", column.field("path")))


def _raters(pairs: list[tuple[str, str]], origins: list[str | None]) -> list[str]:
    """For each row, how many other origins the pair had before."""
    known: dict[tuple[str, str], dict[str | None, int]] = {}
    raters = []
    for pair, origin in zip(pairs, origins, strict=True):
        numbers = known.setdefault(pair, {})
        raters.append(str(numbers.setdefault(origin, len(numbers))))
    return raters


def _labels(sheet: Sheet) -> list[float]:
    labels: list[float] = sheet.numbers("label").to_pylist()
    for row, label in enumerate(labels):
        if label not in (0.0, 1.0):
            raise SourceError(f"{sheet.where(row)}: expected a label of 0 or 1, found {label}; correct or remove it")
    return labels
