"""What a report shows of single images: their elements from the scores' cells, their pixels from the sources."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.errors import PlumblineError, RowError
from plumbline.operators.image_decoding import ImageLimits
from plumbline.operators.image_rows import SOURCES, FetchUri, identify
from plumbline.operators.report.gallery import NO_DETAIL, ImageDetail, Picture, Thumbnails, make_thumbnails
from plumbline.operators.report.page import GatheredRun
from plumbline.operators.report.picked_images import ImageKey, Pick
from plumbline.pipelines.base.storage import first_line, is_storage_error
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.runs import ScoresCell, scores_cells
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.report.finished_run import Originals
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_pictures import with_pictures

READERS = 8
ROWS_AT_ONCE = 16
STREAM_BYTES = 1 << 20
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

    Reads the scores cells that hold a pick, of each pick's source file its row group as far as its row, and of a
    prompts file that holds the sources of edits the row groups of the picks' prompts.
    """
    cells = read_scores_cells(store, run.run_id)
    edits = {} if originals is None else read_edit_sources([pick.prompt_id for pick in picks], originals)

    def show(pick: Pick) -> Thumbnails:
        if originals is None:
            return Thumbnails(Picture(None, run.unreadable))
        shown = show_image(pick, cells, originals, make_thumbnails, edits)
        return Thumbnails(Picture(None, shown.message)) if isinstance(shown, RowError) else shown

    details = read_elements(picks, cells, store)
    with ThreadPoolExecutor(READERS) as pool:
        for pick, shown in zip(picks, pool.map(show, picks), strict=True):
            details[pick.key] = details[pick.key]._replace(**shown.image._asdict(), sources=shown.sources)
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
        held = with_pictures(prompts, originals.prompt_shards)
    except Exception as error:
        if not _is_unreadable(error):
            raise
        return {}
    names = [name for name in SOURCES if name in held.column_names]
    return dict(zip(prompt_ids, held.select(names).to_pylist(), strict=True)) if names else {}


def show_image(
    pick: Pick,
    cells: Sequence[ScoresCell],
    originals: Originals,
    make: MakePicture[Made],
    edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Made | RowError:
    """What is made of a pick's image, or why it cannot be shown; `edits` are the sources that prompts have."""
    place = next(iter(_find_places([pick], cells).get(pick.key, ())), None)
    if place is None:
        return RowError("missing_image", GONE)
    return show_row(pick.key, pick.prompt_id, place.shard, place.row, originals, make, edits.get(pick.prompt_id, {}))


def show_row(
    key: ImageKey,
    prompt_id: str,
    shard_name: str,
    row: int,
    originals: Originals,
    make: MakePicture[Made],
    edit: Mapping[str, Any] = MappingProxyType({}),
) -> Made | RowError:
    """What is made of the image in a row of a generator's shard, or why it cannot be shown; `edit` as the prompt has
    the sources of it.
    """
    shard = originals.shards.get((key.generator, shard_name))
    if shard is None:
        return RowError("missing_image", GONE)
    try:
        record = read_row(shard, row)
        if record is None or identify(record | {"prompt_id": prompt_id}, key.generator).image_id != key.image_id:
            return RowError("missing_image", "another image stands in its place; the file has changed since the run")
        return make({**edit, **record}, originals.limits, originals.uris.read)
    except Exception as error:
        if not _is_unreadable(error):
            raise
        return RowError("unreadable_uri", f"{shard.url}: {first_line(error)}")


def _is_unreadable(error: Exception) -> bool:
    return isinstance(error, (PlumblineError, pa.ArrowException, UnicodeDecodeError)) or is_storage_error(error)


def read_row(shard: Shard, row: int) -> dict[str, Any] | None:
    """One row of a shard by our column names, reading no further than it; None where the shard is shorter."""
    row = shard.row_in_file(row) - shard.first_row
    with shard.place.open(size=shard.size) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=STREAM_BYTES)
        names = dict(shard.columns)
        wanted = {its: names.get(its, its) for its in IMAGE_COLUMNS}
        wanted |= {its: names[its] for its in SOURCES if its in names}
        present = {its: name for its, name in wanted.items() if name in file.schema_arrow.names}
        for batch in file.iter_batches(
            ROWS_AT_ONCE, row_groups=list(shard.row_groups), columns=list(present.values()), use_threads=False
        ):
            if row < len(batch):
                record = batch.slice(row, 1).to_pylist()[0]
                return {its: record[name] for its, name in present.items()}
            row -= len(batch)
    return None
