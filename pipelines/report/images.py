"""What the gallery needs of single images: their elements from the scores' cells, their pixels from the sources."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from operators.errors import PlumblineError, RowError
from operators.images import ImageLimits, identify
from operators.report.gallery import ImageDetail, ImageKey, Pick, make_thumbnail
from pipelines.cells.cells import Shard
from pipelines.cells.store import Store
from pipelines.sources.benchmark import IMAGE_COLUMNS
from pipelines.sources.sources import Sources
from pipelines.sources.uris import Uris
from pipelines.storage import StorageConfig, first_line, is_storage_error, locate

READERS = 8
ROWS_AT_ONCE = 16
STREAM_BYTES = 1 << 20


class CellName(NamedTuple):
    """What the path of a scores cell says."""

    path: str
    recipe: str
    generator: str
    shard: str
    draft: bool


class Place(NamedTuple):
    """Where a picked image stands: its shard's name, and its row in that shard and in every cell on it."""

    shard: str
    row: int


Places = Mapping[ImageKey, Place]


def read_details(
    picks: Sequence[Pick],
    manifest: Mapping[str, Any],
    store: Store,
    sources: Sources | None,
    *,
    limits: ImageLimits,
    uris: Uris,
    unreadable: str,
) -> dict[ImageKey, ImageDetail]:
    """The thumbnail and the elements of every pick, or why there are none.

    Reads one metric's scores cells of the generators picked, then of the others only the cells that hold a pick, and of
    each pick's source file its row group as far as its row.
    """
    cells = [cell for record in manifest.get("cells", ()) if (cell := _cell_name(record)) is not None]
    by_recipe = {
        recipe: [one for one in cells if one.recipe == recipe] for recipe in dict.fromkeys(c.recipe for c in cells)
    }
    with ThreadPoolExecutor(READERS) as pool:
        places = _find_places({pick.key for pick in picks}, by_recipe, store, pool)
        elements = _read_elements(places, cells, store, pool)
        shards = {(shard.group, shard.name): shard for shard in (sources.image_shards if sources is not None else ())}
        show = partial(_thumbnail, places=places, shards=shards, storage=store.storage, limits=limits, uris=uris)
        shown = list(pool.map(lambda pick: unreadable or show(pick), picks))
    return {pick.key: _detail(image, elements.get(pick.key, [])) for pick, image in zip(picks, shown, strict=True)}


def _detail(image: str | RowError, rows: Iterable[Mapping[str, Any]]) -> ImageDetail:
    found = list(rows)
    return ImageDetail(
        thumbnail=image if isinstance(image, str) and image.startswith("data:") else None,
        missing=image.message if isinstance(image, RowError) else "" if image.startswith("data:") else image,
        elements={row["metric"]: row["elements"] for row in found if row.get("elements")},
        rationales={row["metric"]: row["rationale"] for row in found if row.get("rationale")},
    )


def _cell_name(record: Mapping[str, Any]) -> CellName | None:
    """A scores cell that holds rows: <stage>/<recipe8>/<generator>/<shard>-<key8>.parquet."""
    path, state = str(record.get("path", "")), record.get("state")
    parts = path.split("/")
    if parts[0] != "scores" or len(parts) != 4 or state not in ("committed", "cached", "draft"):
        return None
    return CellName(path, parts[1], parts[2], parts[3].removesuffix(".parquet")[:-9], state == "draft")


def _read_cell(cell: CellName, store: Store) -> pa.Table | None:
    """A cell's rows, or None where it cannot be read: its images are then shown without what it says."""
    try:
        return store.read(cell.path, draft=cell.draft)
    except PlumblineError:
        return None


def _find_places(
    keys: set[ImageKey], by_recipe: Mapping[str, Sequence[CellName]], store: Store, pool: ThreadPoolExecutor
) -> dict[ImageKey, Place]:
    """Where the images stand, by the ids in one recipe's cells after another's, until all are found."""
    found: dict[ImageKey, Place] = {}
    for cells in by_recipe.values():
        missing = keys - found.keys()
        mine = [cell for cell in cells if any(key.generator == cell.generator for key in missing)]
        for places in pool.map(lambda cell: _places_in(cell, missing, store), mine):  # noqa: B023  # used at once
            found |= {key: place for key, place in places.items() if key not in found}
    return found


def _places_in(cell: CellName, keys: set[ImageKey], store: Store) -> dict[ImageKey, Place]:
    table = _read_cell(cell, store)
    ids = table.column("image_id").to_pylist() if table is not None else []
    places = {ImageKey(cell.generator, image_id): Place(cell.shard, row) for row, image_id in enumerate(ids)}
    return {key: place for key, place in places.items() if key in keys}


def _read_elements(
    places: Places, cells: Sequence[CellName], store: Store, pool: ThreadPoolExecutor
) -> dict[ImageKey, list[Mapping[str, Any]]]:
    """Of every image its rows in all metrics' cells."""
    wanted: dict[tuple[str, str], dict[ImageKey, int]] = {}
    for key, place in places.items():
        wanted.setdefault((key.generator, place.shard), {})[key] = place.row
    mine = [cell for cell in cells if (cell.generator, cell.shard) in wanted]
    found: dict[ImageKey, list[Mapping[str, Any]]] = {}
    for cell, table in zip(mine, pool.map(lambda one: _read_cell(one, store), mine), strict=True):
        for key, row in wanted[cell.generator, cell.shard].items():
            if table is not None and row < len(table) and table.column("image_id")[row].as_py() == key.image_id:
                found.setdefault(key, []).append(table.slice(row, 1).to_pylist()[0])
    return found


def _thumbnail(
    pick: Pick,
    *,
    places: Places,
    shards: Mapping[tuple[str, str], Shard],
    storage: StorageConfig,
    limits: ImageLimits,
    uris: Uris,
) -> str | RowError:
    """The image as a data: address, or why it cannot be shown."""
    key, place = pick.key, places.get(pick.key)
    shard = shards.get((key.generator, place.shard)) if place is not None else None
    if place is None or shard is None:
        return RowError(
            "missing_image", "its place in the sources is not known any more; they have changed since the run"
        )
    try:
        record = read_row(shard, place.row, storage)
        if record is None or identify(record | {"prompt_id": pick.prompt_id}, key.generator).image_id != key.image_id:
            return RowError("missing_image", "another image stands in its place; the file has changed since the run")
        return make_thumbnail(record, limits, uris.read)
    except Exception as error:
        if not isinstance(error, (PlumblineError, pa.ArrowException, UnicodeDecodeError)) and not is_storage_error(
            error
        ):
            raise
        return RowError("unreadable_uri", f"{shard.url}: {first_line(error)}")


def read_row(shard: Shard, row: int, storage: StorageConfig) -> dict[str, Any] | None:
    """One row of a shard by our column names, reading no further than it; None where the shard is shorter."""
    location = locate(shard.url, storage)
    with location.fs.open(location.path, "rb") as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=STREAM_BYTES)
        names = dict(shard.columns)
        wanted = {its: names.get(its, its) for its in IMAGE_COLUMNS}
        present = {its: name for its, name in wanted.items() if name in file.schema_arrow.names}
        for batch in file.iter_batches(
            ROWS_AT_ONCE, row_groups=list(shard.row_groups), columns=list(present.values()), use_threads=False
        ):
            if row < len(batch):
                record = batch.slice(row, 1).to_pylist()[0]
                return {its: record[name] for its, name in present.items()}
            row -= len(batch)
    return None
