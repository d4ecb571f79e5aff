"""Tables with a row for each image that metrics are judged by, and that plumbline score reads too."""

from collections.abc import Sequence
from typing import NamedTuple

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.sheets import Sheet, read_sheet
from plumbline.pipelines.sources.input_columns import DEFAULT_NAMES, InputColumnsConfig, find_names

REMEDY = "docs/metaeval.md has an example"


class ImageRows(NamedTuple):
    """A table with a row for each image."""

    sheet: Sheet
    names: InputColumnsConfig
    """The columns under the names that plumbline score knows."""
    image_id: str
    """The column of the images' ids, or else of their paths."""


def read_image_rows(place: Place, columns: Sequence[str]) -> ImageRows:
    """Return these columns and the images' ids; images themselves are not read."""
    sheet = read_sheet(place, (*columns, *DEFAULT_NAMES["image_id"]))
    names = find_names(sheet.names, InputColumnsConfig())
    if names.image_id is None and names.image is not None:
        sheet = read_sheet(place, (*columns, names.image))
    return ImageRows(sheet, names, names.image_id or names.image or "image_id")
