"""The results of jobs.distance, as they are stored: distances, comparisons of generators, and images left out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from plumbline.pipelines.store.store import Store, StoreError
from plumbline.plugins.distances.distance_config import DistanceName

DISTANCES_FOLDER = "distances"
MAX_RESULTS = 20
"""Maximum number of results of a run, newest first, that are read for its report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistanceRow:
    """The distance of one generator's images from the reference images."""

    distance: DistanceName
    generator: str
    images: int
    reference_images: int
    value: float
    """The number that the release prints; it is too large for a finite number of images."""
    estimate: float | None
    """The distance for infinitely many images, with its 95% interval (`low`, `high`)."""
    low: float | None
    high: float | None
    reason: str
    """Sentence that explains a missing estimate; otherwise empty."""


DISTANCES_SCHEMA = pa.schema(
    [
        ("distance", pa.string()),
        ("generator", pa.string()),
        ("images", pa.int64()),
        ("reference_images", pa.int64()),
        ("value", pa.float64()),
        ("estimate", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("reason", pa.string()),
    ]
)
"""Schema of distances.parquet, with a row for each DistanceRow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two generators' distances from the same reference images."""

    distance: DistanceName
    closer: str
    farther: str
    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided p-value, corrected by Holm's method for all pairs of generators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedImages:
    """Images of a set that have no features."""

    name: str
    total: int
    failed: int
    kinds: Mapping[str, int]
    problems: tuple[str, ...]
    """Reasons why whole shards have no features."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedModel:
    """A model that computed features."""

    family: str
    checkpoint: str | None
    revision: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DistanceResults:
    """Results of one command; distances.json contains them."""

    distances_id: str
    run_id: str | None
    """Run whose images were compared; None for other images."""
    benchmark: str
    images: str | None
    reference: str
    models: Mapping[str, UsedModel]
    """Models by role."""
    distances: Sequence[DistanceRow]
    comparisons: Sequence[Comparison]
    failed: Sequence[FailedImages]
    notes: Sequence[str]

    @property
    def folder(self) -> str:
        """Path of the results' folder within the store."""
        return f"{_locate_folder(self.run_id)}/{self.distances_id}"


_RESULTS_ADAPTER = TypeAdapter(DistanceResults)


def _locate_folder(run_id: str | None) -> str:
    return DISTANCES_FOLDER if run_id is None else f"runs/{run_id}/{DISTANCES_FOLDER}"


def write_results(store: Store, results: DistanceResults) -> None:
    """Write the table of distances, then distances.json."""
    rows = [asdict(row) for row in results.distances]
    store.write_table(f"{results.folder}/distances.parquet", pa.Table.from_pylist(rows, DISTANCES_SCHEMA))
    store.create_json(f"{results.folder}/distances.json", asdict(results))


def read_results(store: Store, run_id: str) -> list[DistanceResults]:
    """Return the newest results of a run, oldest first; raise StoreError if a file cannot be read."""
    folder = _locate_folder(run_id)
    newest = sorted(store.list_folders(folder))[-MAX_RESULTS:]
    found = [(path, store.read_json(path)) for path in (f"{folder}/{name}/distances.json" for name in newest)]
    return [_parse_results(store, path, content) for path, content in found if content is not None]


def _parse_results(store: Store, path: str, content: Mapping[str, object]) -> DistanceResults:
    try:
        return _RESULTS_ADAPTER.validate_python(content)
    except ValidationError as error:
        raise StoreError(
            f"{store.place / path}: expected the results of plumbline distance, found a damaged file; delete its "
            "folder and measure the distances again"
        ) from error
