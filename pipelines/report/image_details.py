"""What a report shows of single images: their elements from the scores' cells, their pixels from the sources."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import SOURCES, FetchUri, identify
from plumbline.operators.report.gallery import NO_DETAIL, ImageDetail, Picture, Thumbnails, make_thumbnails
from plumbline.operators.report.page import GatheredRun
from plumbline.operators.report.picked_images import ImageKey, Pick
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.base.storage import first_line, is_storage_error
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.runs import ScoresCell, scores_cells
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.report.finished_run import Originals
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.shards import own_names

READERS = 8
GONE = "its place in the sources is not known any more; they have changed since the run"


class StoredRow(NamedTuple):
    """Where one metric's score of an image stands: its cell, that cell's shard, and its row in both."""

    cell: str
    """The cell's path, or its draft's."""
    shard: str
    row: int


StoredRows = Mapping[ImageKey, Sequence[StoredRow]]
Made = TypeVar("Made")
MakePicture = Callable[[Mapping[str, Any], ImageLimits, FetchUri], Made | RowError]
"""Makes something to show of a row of the sources."""


def read_details(
    picks: Sequence[Pick], run: GatheredRun, store: Store, originals: Originals | None
) -> dict[ImageKey, ImageDetail]:
    """The thumbnails and the elements of every pick of a run's scores, or why there are none.

    Reads the scores cells that hold a pick, of each source file the picks' rows (`ParquetReader.read_rows`), and of a
    prompts file that holds the sources of edits the row groups of the picks' prompts.
    """
    cells = read_scores_cells(store, run.run_id)
    details = read_elements(picks, cells, store)
    if originals is None:
        return {key: detail._replace(missing=run.unreadable) for key, detail in details.items()}
    edits = read_edit_sources([pick.prompt_id for pick in picks], originals)
    for key, made in show_images(picks, cells, originals, make_thumbnails, edits).items():
        shown = Thumbnails(Picture(None, made.message)) if isinstance(made, RowError) else made
        details[key] = details[key]._replace(**shown.image._asdict(), sources=shown.sources)
    return details


def read_elements(picks: Sequence[Pick], cells: Sequence[ScoresCell], store: Store) -> dict[ImageKey, ImageDetail]:
    """Of every pick what its scores' cells say of it besides its scores; nothing where these are gone."""
    rows = _read_rows(_find_places(picks, cells), store)
    return {pick.key: _detail(rows.get(pick.key, [])) for pick in picks}


def _detail(rows: Sequence[Mapping[str, Any]]) -> ImageDetail:
    return NO_DETAIL._replace(
        elements={row["metric"]: row["elements"] for row in rows if row.get("elements")},
        rationales={row["metric"]: row["rationale"] for row in rows if row.get("rationale")},
        ratings={row["metric"]: _ratings(row["ratings"]) for row in rows if row.get("ratings")},
    )


def _ratings(given: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {rating["name"]: rating["value"] for rating in given}


def read_scores_cells(store: Store, run_id: str) -> list[ScoresCell]:
    """The cells that the run's scores were read from; none where the run's table of cells is gone.

    Raises StoreError where that is damaged.
    """
    return scores_cells(store, run_id) if store.exists(f"runs/{run_id}/cells.parquet") else []


def _find_places(picks: Sequence[Pick], cells: Sequence[ScoresCell]) -> StoredRows:
    """Where the images stand, one place for each metric that scored them."""
    first_rows = [cell.first_row for cell in cells]
    places: dict[ImageKey, list[StoredRow]] = {}
    for pick in picks:
        for row in pick.rows:
            number = bisect_right(first_rows, row) - 1
            if number >= 0:
                cell = cells[number]
                place = StoredRow(cell.stored, _shard_name(cell.path), row - cell.first_row)
                places.setdefault(pick.key, []).append(place)
    return places


def _shard_name(path: str) -> str:
    """The shard of a cell, <stage>/<recipe8>/<generator>/<shard>-<key8>.parquet."""
    return path.rpartition("/")[2].removesuffix(".parquet")[:-9]


def _read_rows(places: StoredRows, store: Store) -> dict[ImageKey, list[Mapping[str, Any]]]:
    """Of every image its rows in all metrics' cells."""
    wanted: dict[str, dict[ImageKey, int]] = {}
    for key, of_image in places.items():
        for place in of_image:
            wanted.setdefault(place.cell, {})[key] = place.row
    found: dict[ImageKey, list[Mapping[str, Any]]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        tables = pool.map(lambda path: _read_cell(path, store), wanted)
    for cell_rows, table in zip(wanted.values(), tables, strict=True):
        for key, row in cell_rows.items():
            if table is not None and row < len(table) and table.column("image_id")[row].as_py() == key.image_id:
                found.setdefault(key, []).append(table.slice(row, 1).to_pylist()[0])
    return found


def _read_cell(path: str, store: Store) -> pa.Table | None:
    """A cell's rows, or None where it cannot be read: its images are then shown without what it says."""
    try:
        return store.read_cell(path).table
    except PlumblineError:
        return None


def read_edit_sources(prompt_ids: Sequence[str], originals: Originals) -> Mapping[str, Mapping[str, Any]]:
    """By prompt, the columns of sources that the prompts' file has; nothing where it cannot be read any more."""
    prompts = pa.table({"prompt_id": pa.array(prompt_ids, pa.string())})
    try:
        held = append_edit_columns(prompts, originals.prompt_shards)
    except Exception as error:
        if not _is_unreadable(error):
            raise
        return {}
    names = [name for name in SOURCES if name in held.column_names]
    return dict(zip(prompt_ids, held.select(names).to_pylist(), strict=True)) if names else {}


class PlacedImage(NamedTuple):
    """An image, and where the sources have it."""

    key: ImageKey
    prompt_id: str
    shard: str
    row: int


def show_images(
    picks: Sequence[Pick],
    cells: Sequence[ScoresCell],
    originals: Originals,
    make: MakePicture[Made],
    edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[ImageKey, Made | RowError]:
    """Return what is made of each pick's image, or why it cannot be shown; `edits` are the sources that prompts have.

    Each thread has one image in memory. It reads several images of a file without opening the file again.
    """
    places = _find_places(picks, cells)
    shown: dict[ImageKey, Made | RowError] = {}
    by_file: dict[tuple[str, str], list[PlacedImage]] = {}
    for pick in picks:
        if pick.key not in places:
            shown[pick.key] = RowError("missing_image", GONE)
            continue
        image = PlacedImage(pick.key, pick.prompt_id, places[pick.key][0].shard, places[pick.key][0].row)
        shard = originals.shards.get((pick.key.generator, image.shard))
        by_file.setdefault((pick.key.generator, "" if shard is None else shard.url), []).append(image)
    with ThreadPoolExecutor(READERS) as pool:
        for made in pool.map(lambda images: _show_placed(images, originals, make, edits), _divide(by_file.values())):
            shown |= made
    return shown


def _divide(files: Collection[Sequence[PlacedImage]]) -> Iterator[Sequence[PlacedImage]]:
    """Yield the images of each file; of few files in parts, so that all readers have work."""
    parts = -(-READERS // max(1, len(files)))
    for images in files:
        ordered = sorted(images, key=lambda image: (image.shard, image.row))
        size = -(-len(ordered) // parts)
        yield from (ordered[first : first + size] for first in range(0, len(ordered), size))


def show_row(
    image: PlacedImage, originals: Originals, make: MakePicture[Made], edit: Mapping[str, Any] = MappingProxyType({})
) -> Made | RowError:
    """Return what is made of one image, as `show_images`; `edit` are the sources that its prompt has."""
    return _show_placed([image], originals, make, {image.prompt_id: edit})[image.key]


def _show_placed(
    images: Sequence[PlacedImage],
    originals: Originals,
    make: MakePicture[Made],
    edits: Mapping[str, Mapping[str, Any]],
) -> dict[ImageKey, Made | RowError]:
    """Show images of one file. If one cannot be read, those that follow are read by themselves."""
    shown: dict[ImageKey, Made | RowError] = {}
    rows: dict[PlacedImage, tuple[Shard, int]] = {}
    for image in images:
        shard = originals.shards.get((image.key.generator, image.shard))
        if shard is None or image.row >= shard.rows:
            shown[image.key] = RowError("missing_image", GONE)
        else:
            rows[image] = (shard, shard.row_in_file(image.row))
    left = sorted(rows, key=lambda image: rows[image][1])
    try:
        for record in read_rows(rows[left[0]][0], [rows[image][1] for image in left]) if left else ():
            shown[left[0].key] = _show_record(left[0], record, originals, make, edits)
            del left[0]
    except Exception as error:
        if not _is_unreadable(error):
            raise
        shown[left[0].key] = RowError("unreadable_uri", f"{rows[left[0]][0].url}: {first_line(error)}")
        for image in left[1:]:
            shown |= _show_placed([image], originals, make, edits)
    return shown


def _show_record(
    image: PlacedImage,
    record: Mapping[str, Any] | None,
    originals: Originals,
    make: MakePicture[Made],
    edits: Mapping[str, Mapping[str, Any]],
) -> Made | RowError:
    found = None if record is None else identify({**record, "prompt_id": image.prompt_id}, image.key.generator).image_id
    if record is None or found != image.key.image_id:
        return RowError("missing_image", "another image stands in its place; the file has changed since the run")
    return make({**edits.get(image.prompt_id, {}), **record}, originals.limits, originals.uris.read)


def _is_unreadable(error: Exception) -> bool:
    return isinstance(error, (PlumblineError, pa.ArrowException, UnicodeDecodeError)) or is_storage_error(error)


def read_rows(shard: Shard, rows: Sequence[int]) -> Iterator[dict[str, Any] | None]:
    """Yield rows of a shard's file by our column names, in ascending order; None for one beyond its end."""
    with shard.place.open(size=shard.size, cache_type="none") as stream:
        file = ParquetReader(stream, shard.size)
        own = own_names(shard, (*IMAGE_COLUMNS, *SOURCES))
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
