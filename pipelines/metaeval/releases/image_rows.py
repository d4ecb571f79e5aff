"""Tables with a row for each judged image, in the format that plumbline score reads."""

from collections.abc import Sequence
from typing import NamedTuple

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.sheets import Sheet, read_sheet
from plumbline.pipelines.sources.input_columns import DEFAULT_NAMES, InputColumnsConfig, find_names

REMEDY = "docs/metaeval.md has an example"


class ImageRows(NamedTuple):
    """A table with a row per image."""

    sheet: Sheet
    names: InputColumnsConfig
    """Names of the columns that plumbline score knows."""
    image_id: str
    """Column of the images' ids, or of their paths."""


def read_image_rows(place: Place, columns: Sequence[str]) -> ImageRows:
    """Read these columns and the images' ids, but not the images."""
    sheet = read_sheet(place, (*columns, *DEFAULT_NAMES["image_id"]))
    names = find_names(sheet.names, InputColumnsConfig())
    if names.image_id is None and names.image is not None:
        sheet = read_sheet(place, (*columns, names.image))
    return ImageRows(sheet, names, names.image_id or names.image or "image_id")
