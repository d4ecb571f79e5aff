"""How large a benchmark's shards are: decided when it first comes to a store and kept there, as keys follow from it.

Where what was kept is lost or damaged, the benchmark's runs tell how its cells are cut.
"""

from collections.abc import Sequence

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.cells.runs import newest_of
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.sources.shards import Cut, ListedFile, cut_of, read_footer
from plumbline.pipelines.sources.sources import ImageFiles

LARGEST = Cut(rows=32_768, bytes=512 << 20)
"""The scores of so many rows are about 1 MB. A worker holds the bytes of two shards or three."""
FEWEST = 128
"""Shards that a benchmark is cut into at least, as long as they have the rows of a small one's (Cut)."""


def kept_cut(benchmark: str, images: ImageFiles, store: Store, *, remember: bool) -> Cut:
    """How the store cuts the benchmark, decided now where it comes for the first time."""
    note = f"cuts/{benchmark}.json"
    if known := store.read_json(note):
        return Cut(known["rows"], known["bytes"])
    cut = (_cut_of_runs(benchmark, store) or choose_cut(images)) if store.keeps_cuts() else Cut()
    if remember and not store.create_json(note, cut._asdict()):
        return kept_cut(benchmark, images, store, remember=False)  # another sweep was first
    return cut


def _cut_of_runs(benchmark: str, store: Store) -> Cut | None:
    """That of the benchmark's newest run whose shards nobody sized by rows alone; None where it has no run."""
    cuts = (cut_of((run.manifest or {}).get("config", {})) for run in newest_of(store, benchmark))
    return next((cut for cut in cuts if cut.bytes is not None), None)


def choose_cut(images: ImageFiles) -> Cut:
    """So many rows to a shard that there are enough shards for many workers, and neither small nor long ones."""
    rows = sum(_expected_rows(listing.tables) for listing in images.listings.values())
    return LARGEST._replace(rows=min(max(rows // FEWEST, Cut().rows), LARGEST.rows))


def _expected_rows(files: Sequence[ListedFile]) -> int:
    """About how many rows files have that are like the largest of them."""
    largest = max(files, key=lambda file: file.size, default=None)
    if largest is None:
        return 0
    try:
        rows: int = read_footer(largest).num_rows
    except SourceError:
        return 0
    return rows * sum(file.size for file in files) // max(largest.size, 1)
