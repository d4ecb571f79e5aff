"""What a run's questions of each kind come to: its scores' cells beside the questions that they stand on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from plumbline.operators.errors import ConfigError
from plumbline.operators.question_kinds import KindPool, Kinds, Pooled
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store, draft_path

READ = ("cached", "committed", "draft")
"""States of cells that hold a table."""
SHARDS_KEPT = 64
"""Of whose questions the kinds are kept in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindsConfig:
    """Of which run and metric."""

    store: str = "store"
    """Folder or s3:// prefix of the store."""
    of: str
    """One of the run's metrics, by its name."""
    run: str = "latest"
    """A run's id (python -m jobs.status); `latest` is the newest."""
    storage: StorageConfig = field(default_factory=StorageConfig)


def pool_kinds(store: Store, run: str, metric: str) -> list[Pooled]:
    """The pooled scores of a metric's questions; raises ConfigError for a metric that has none or is not the run's."""
    run_id = find_run(store, run)
    metrics = read_manifest(store, run_id)["metrics"]
    if metric not in metrics:
        raise ConfigError(f"of={metric}: run {run_id} has no such metric; it has {', '.join(metrics)}")
    cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
    states = dict(zip(*(cells.column(name).to_pylist() for name in ("path", "state")), strict=True))

    @lru_cache(maxsize=SHARDS_KEPT)
    def kinds_of(path: str) -> Kinds:
        table = store.read(path, draft=states.get(path) == "draft", columns=["prompt_id", "question_id", "kind"])
        prompts, questions, kinds = (table.column(name).to_pylist() for name in ("prompt_id", "question_id", "kind"))
        return dict(zip(zip(prompts, questions, strict=True), kinds, strict=True))

    pool = KindPool()
    for path in _scores_of(store, states, metric):
        cell = store.read_cell(draft_path(path) if states[path] == "draft" else path)
        pool.add(cell.table, _merged(map(kinds_of, _questions(cell.provenance["inputs"]))))
    pooled = pool.pooled()
    if not pooled:
        raise ConfigError(f"of={metric}: its questions in run {run_id} have no kinds, or it has no scores")
    return pooled


def _scores_of(store: Store, states: Mapping[str, str], metric: str) -> Iterator[str]:
    """The scores cells of the metric; all of a folder are of the same."""
    metric_of: dict[str, str] = {}
    for path, state in states.items():
        if not path.startswith("scores/") or state not in READ:
            continue
        folder = "/".join(path.split("/")[:2])
        if folder not in metric_of:
            table = store.read(path, draft=state == "draft", columns=["metric"])
            metric_of |= {folder: str(table.column("metric")[0])} if len(table) else {}
        if metric_of.get(folder) == metric:
            yield path


def _questions(inputs: Iterable[str]) -> list[str]:
    return [path for path in inputs if path.startswith("questions/")]


def _merged(kinds: Iterable[Kinds]) -> Kinds:
    return {key: kind for of_shard in kinds for key, kind in of_shard.items()}
