"""Sizes of a benchmark's shards: decided when the benchmark first comes to a store, and kept, as keys depend on them.

If the kept size is lost or damaged, it is taken from the benchmark's runs.
"""

from collections.abc import Sequence

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.sources.shards import ListedFile, ShardSize, read_footer, run_shard_size
from plumbline.pipelines.sources.sources import ImageFiles
from plumbline.pipelines.store.runs import newest_runs_of
from plumbline.pipelines.store.store import Store

MAX_SIZE = ShardSize(rows=32_768, bytes=512 << 20)
"""Largest shard. Its scores are about 1 MB, and a worker keeps the bytes of two or three shards in memory."""
MIN_SHARDS = 128
"""Minimum number of shards of a benchmark, unless they would have fewer rows than the default."""


def load_shard_size(benchmark: str, images: ImageFiles, store: Store, *, remember: bool) -> ShardSize:
    """Return the size of the benchmark's shards in a store; decide it if the benchmark comes for the first time."""
    note = f"cuts/{benchmark}.json"
    if known := store.read_json(note):
        return ShardSize(known["rows"], known["bytes"])
    size = _size_in_runs(benchmark, store) or choose_shard_size(images)
    if remember and not store.create_json(note, size._asdict()):
        return load_shard_size(benchmark, images, store, remember=False)  # another sweep was first
    return size


def _size_in_runs(benchmark: str, store: Store) -> ShardSize | None:
    """Return the size in the benchmark's newest run whose size was not configured in rows alone; None without one."""
    sizes = (run_shard_size((run.manifest or {}).get("config", {})) for run in newest_runs_of(store, benchmark))
    return next((size for size in sizes if size.bytes is not None), None)


def choose_shard_size(images: ImageFiles) -> ShardSize:
    """Return a size that gives enough shards for many workers, and neither small nor long shards."""
    rows = sum(_estimate_rows(listing.tables) for listing in images.listings.values())
    return MAX_SIZE._replace(rows=min(max(rows // MIN_SHARDS, ShardSize().rows), MAX_SIZE.rows))


def _estimate_rows(files: Sequence[ListedFile]) -> int:
    """Estimate the number of rows of all files from the largest."""
    largest = max(files, key=lambda file: file.size, default=None)
    if largest is None:
        return 0
    try:
        rows: int = read_footer(largest).num_rows
    except SourceError:
        return 0
    return rows * sum(file.size for file in files) // max(largest.size, 1)
