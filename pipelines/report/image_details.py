"""Reads the details of individual images for a report: elements from score cells, and pixels from the sources."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import SOURCE_COLUMNS, FetchUri, read_image_row
from plumbline.operators.report.gallery import EMPTY_IMAGE_DETAIL, ImageDetail, Thumbnail, make_thumbnails
from plumbline.operators.report.marked_words import shorten
from plumbline.operators.report.page import GatheredRun
from plumbline.operators.report.picked_images import ImageKey, Pick
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.base.storage import get_first_line, is_storage_error
from plumbline.pipelines.report.finished_run import OriginalSources
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.shards import map_file_columns
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.runs import ScoresCell, list_scores_cells
from plumbline.pipelines.store.store import Store

N_READERS = 8
ROW_UNKNOWN_REASON = "the sources have changed since the run, so the image's row is unknown"


class StoredRow(NamedTuple):
    """Location of one metric's score for an image."""

    cell: str
    """Path of the cell or of its draft."""
    shard: str
    row: int
    """Row index in the cell and in the shard."""


Made = TypeVar("Made")
MakeImage = Callable[[Mapping[str, Any], ImageLimits, FetchUri], Made | RowError]
"""Function that makes something to show (such as a thumbnail) from a row of the sources."""


def read_details(
    picks: Sequence[Pick], run: GatheredRun, store: Store, originals: OriginalSources | None
) -> dict[ImageKey, ImageDetail]:
    """Return the thumbnail and the elements of every picked image, or the reason why they cannot be read.

    Only the cells of the picked images are read, and only the rows of these images in the shards' files
    (`ParquetReader.read_rows`). If a prompts file contains the source images of edits, the row groups with the images'
    prompts are read as well.
    """
    cells = read_scores_cells(store, run.run_id)
    details = read_elements(picks, cells, store)
    if originals is None:
        missing = Thumbnail(None, shorten(run.unreadable))
        return {key: detail._replace(image=missing) for key, detail in details.items()}
    edits = read_edit_sources([pick.prompt_id for pick in picks], originals)
    for key, made in render_images(picks, cells, originals, make_thumbnails, edits).items():
        if isinstance(made, RowError):
            details[key] = details[key]._replace(image=Thumbnail(None, shorten(made.message)))
        else:
            image, *sources = made
            details[key] = details[key]._replace(image=image, sources=sources)
    return details


def read_elements(picks: Sequence[Pick], cells: Sequence[ScoresCell], store: Store) -> dict[ImageKey, ImageDetail]:
    """Return the elements, rationales and ratings of every picked image, by the image's key.

    These values are read from cells, and are empty if the cells cannot be read.
    """
    wanted: dict[str, dict[ImageKey, int]] = {}
    for key, locations in _find_rows(picks, cells).items():
        for location in locations:
            wanted.setdefault(location.cell, {})[key] = location.row

    def read_cell(path: str) -> pa.Table | None:
        try:
            return store.read_cell(path).table
        except PlumblineError:
            return None  # an image can be shown without its questions

    with ThreadPoolExecutor(N_READERS) as pool:
        tables = list(pool.map(read_cell, wanted))
    found: dict[ImageKey, list[Mapping[str, Any]]] = {}
    for cell_rows, table in zip(wanted.values(), tables, strict=True):
        for key, number in cell_rows.items():
            if table is not None and number < len(table) and table.column("image_id")[number].as_py() == key.image_id:
                found.setdefault(key, []).append(table.slice(number, 1).to_pylist()[0])
    details = {}
    for pick in picks:
        rows = found.get(pick.key, [])
        details[pick.key] = EMPTY_IMAGE_DETAIL._replace(
            elements={row["metric"]: row["elements"] for row in rows if row.get("elements")},
            rationales={row["metric"]: row["rationale"] for row in rows if row.get("rationale")},
            ratings={
                row["metric"]: {rating["name"]: rating["value"] for rating in row["ratings"]}
                for row in rows
                if row.get("ratings")
            },
        )
    return details


def read_scores_cells(store: Store, run_id: str) -> list[ScoresCell]:
    """Return the run's score cells; empty if the table of cells no longer exists. Raise StoreError if it is damaged."""
    return list_scores_cells(store, run_id) if store.exists(f"runs/{run_id}/cells.parquet") else []


def _find_rows(picks: Sequence[Pick], cells: Sequence[ScoresCell]) -> Mapping[ImageKey, Sequence[StoredRow]]:
    """Return the locations of the scores of each picked image, one for each metric that scored the image."""
    first_rows = [cell.first_row for cell in cells]
    found: dict[ImageKey, list[StoredRow]] = {}
    for pick in picks:
        for row in pick.rows:
            number = bisect_right(first_rows, row) - 1
            if number >= 0:
                cell = cells[number]
                # The path of a cell ends with <shard>-<key8>.parquet.
                shard = cell.path.rpartition("/")[2].removesuffix(".parquet")[:-9]
                found.setdefault(pick.key, []).append(StoredRow(cell.stored, shard, row - cell.first_row))
    return found


def read_edit_sources(prompt_ids: Sequence[str], originals: OriginalSources) -> Mapping[str, Mapping[str, Any]]:
    """Return the source image columns of the prompts file as a dict for each prompt_id.

    The result is empty if the images are not edits, or if the file can no longer be read.
    """
    prompts = pa.table({"prompt_id": pa.array(prompt_ids, pa.string())})
    try:
        table = append_edit_columns(prompts, originals.prompt_shards)
    except Exception as error:
        if not _is_unreadable(error):
            raise
        return {}
    names = [name for name in SOURCE_COLUMNS if name in table.column_names]
    return dict(zip(prompt_ids, table.select(names).to_pylist(), strict=True)) if names else {}


class LocatedImage(NamedTuple):
    """An image, with its shard and its row in the shard."""

    key: ImageKey
    prompt_id: str
    shard: str
    row: int


def render_images(
    picks: Sequence[Pick],
    cells: Sequence[ScoresCell],
    originals: OriginalSources,
    make: MakeImage[Made],
    edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[ImageKey, Made | RowError]:
    """Return the result of `make` for each picked image, or the reason why the image cannot be shown.

    Each thread has only one image in memory at a time, and opens a file only once for all images that it reads from
    this file. `edits` contains the source images of edits, by prompt, if they are in the prompts file.
    """
    stored = _find_rows(picks, cells)
    shown: dict[ImageKey, Made | RowError] = {}
    by_file = defaultdict[tuple[str, str], list[LocatedImage]](list)
    for pick in picks:
        if pick.key not in stored:
            shown[pick.key] = RowError("missing_image", ROW_UNKNOWN_REASON)
            continue
        image = LocatedImage(pick.key, pick.prompt_id, stored[pick.key][0].shard, stored[pick.key][0].row)
        shard = originals.shards.get((pick.key.generator, image.shard))
        by_file[pick.key.generator, "" if shard is None else shard.url].append(image)
    # If there are few files, the images of each are divided, so that all readers have work.
    n_parts = -(-N_READERS // max(1, len(by_file)))
    parts = []
    for images in by_file.values():
        ordered = sorted(images, key=lambda image: (image.shard, image.row))
        size = -(-len(ordered) // n_parts)
        parts += [ordered[first : first + size] for first in range(0, len(ordered), size)]
    with ThreadPoolExecutor(N_READERS) as pool:
        for made in pool.map(lambda images: _render_images_of_file(images, originals, make, edits), parts):
            shown |= made
    return shown


def render_image(
    image: LocatedImage,
    originals: OriginalSources,
    make: MakeImage[Made],
    edit: Mapping[str, Any] = MappingProxyType({}),
) -> Made | RowError:
    """Return the result of `make` for an image, or the reason why the image cannot be shown.

    If the image is an edit, `edit` contains its source image, mask and captions.
    """
    return _render_images_of_file([image], originals, make, {image.prompt_id: edit})[image.key]


def _render_images_of_file(
    images: Sequence[LocatedImage],
    originals: OriginalSources,
    make: MakeImage[Made],
    edits: Mapping[str, Mapping[str, Any]],
) -> dict[ImageKey, Made | RowError]:
    """Return the result of `make`, or the error, for each image; the images are in the same file.

    If an image cannot be read, the images after it are read one by one.
    """
    shown: dict[ImageKey, Made | RowError] = {}
    rows: dict[LocatedImage, tuple[Shard, int]] = {}
    for image in images:
        shard = originals.shards.get((image.key.generator, image.shard))
        if shard is None or image.row >= shard.rows:
            shown[image.key] = RowError("missing_image", ROW_UNKNOWN_REASON)
        else:
            rows[image] = (shard, shard.get_row_in_file(image.row))
    left = sorted(rows, key=lambda image: rows[image][1])
    try:
        for record in read_rows(rows[left[0]][0], [rows[image][1] for image in left]) if left else ():
            image = left[0]
            known = {**(record or {}), "prompt_id": image.prompt_id}
            if record is None or read_image_row(known, image.key.generator).image_id != image.key.image_id:
                message = "the row has another image now; the file has changed since the run"
                shown[image.key] = RowError("missing_image", message)
            else:
                row = {**edits.get(image.prompt_id, {}), **record}
                shown[image.key] = make(row, originals.limits, originals.uris.read)
            del left[0]
    except Exception as error:
        if not _is_unreadable(error):
            raise
        shown[left[0].key] = RowError("unreadable_uri", f"{rows[left[0]][0].url}: {get_first_line(error)}")
        for image in left[1:]:
            shown |= _render_images_of_file([image], originals, make, edits)
    return shown


def _is_unreadable(error: Exception) -> bool:
    return isinstance(error, (PlumblineError, pa.ArrowException, UnicodeDecodeError)) or is_storage_error(error)


def read_rows(shard: Shard, rows: Sequence[int]) -> Iterator[dict[str, Any] | None]:
    """Yield rows of a shard's file in ascending order, with our column names; None for rows beyond the end."""
    with shard.place.open(size=shard.size, cache_type="none") as stream:
        file = ParquetReader(stream, shard.size)
        own = map_file_columns(shard, (*IMAGE_COLUMNS, *SOURCE_COLUMNS))
        names = {ours: name for ours, name in own.items() if name in file.names}
        sizes = [file.footer.row_group(group).num_rows for group in range(file.footer.num_row_groups)]
        ends = list(accumulate(sizes))
        for group, of_group in groupby(rows, partial(bisect_right, ends)):
            if group == len(ends):
                yield from (None for _ in of_group)
                continue
            first = ends[group] - sizes[group]
            columns = list(dict.fromkeys(names.values()))
            for record in file.read_rows(group, [row - first for row in of_group], columns):
                yield {ours: record[name] for ours, name in names.items()}
