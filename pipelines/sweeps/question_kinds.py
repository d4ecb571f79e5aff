"""What a run's questions of each kind come to: its scores' cells beside the questions that they stand on."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.question_cells import cell_states, questions_in, read_stored, scores_of
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store

Kinds = Mapping[tuple[str, str], str | None]
"""By prompt_id and question_id, what a question asks about."""


class Pooled(NamedTuple):
    """The questions of one kind about one generator's images."""

    generator: str
    level: int
    """1 for what stands before the dash of a kind, 2 for the whole of a kind that has one."""
    kind: str
    mean: float
    n: int
    """Answers: of a row of several images each question has one, their mean."""


class KindPool:
    """The sums of the scores of questions, or of a judge's ratings, by generator and kind."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, int, str], list[float]] = defaultdict(list)

    def add(self, scores: pa.Table, kinds: Kinds) -> None:
        """Takes a table of scores (schema ELEMENT_SCORES); rows with an error and questions left out do not count."""
        for row in scores.to_pylist():
            if row["error"] is not None:
                continue
            for kind, score in _scored(row, kinds):
                for level, name in _levels(kind):
                    self._scores[row["generator"], level, name].append(score)

    def pooled(self) -> list[Pooled]:
        """By level, kind and generator."""
        rows = (
            Pooled(generator, level, kind, math.fsum(scores) / len(scores), len(scores))
            for (generator, level, kind), scores in self._scores.items()
        )
        return sorted(rows, key=lambda row: (row.level, row.kind, row.generator))


def _scored(row: Mapping[str, Any], kinds: Kinds) -> Iterator[tuple[str, float]]:
    """Each question, or rating, of an image that has a kind and a score."""
    if row["elements"] is None:
        yield from ((rating["name"].rstrip(" 0123456789"), rating["value"]) for rating in row["ratings"] or ())
        return
    for element in row["elements"]:
        kind = kinds.get((row["prompt_id"], element["question_id"]))
        if kind and element["score"] is not None:
            yield kind, element["score"]


def _levels(kind: str) -> list[tuple[int, str]]:
    broad, dash, _ = kind.partition("-")
    return [(1, broad.strip()), (2, kind)] if dash else [(1, kind)]


SHARDS_KEPT = 64
"""Of whose questions the kinds are kept in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindsConfig:
    """Of which run and metric."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    of: str
    """One of the run's metrics, by its name."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    storage: StorageConfig = field(default_factory=StorageConfig)


def pool_kinds(store: Store, run: str, metric: str) -> list[Pooled]:
    """The pooled scores of a metric's questions; raises ConfigError for a metric that has none or is not the run's."""
    run_id = find_run(store, run)
    metrics = read_manifest(store, run_id)["metrics"]
    if metric not in metrics:
        raise ConfigError(f"of={metric}: run {run_id} has no such metric; it has {', '.join(metrics)}")
    states = cell_states(store, run_id)

    @lru_cache(maxsize=SHARDS_KEPT)
    def kinds_of(path: str) -> Kinds:
        table = store.read(path, draft=states.get(path) == "draft", columns=["prompt_id", "question_id", "kind"])
        prompts, questions, kinds = (table.column(name).to_pylist() for name in ("prompt_id", "question_id", "kind"))
        return dict(zip(zip(prompts, questions, strict=True), kinds, strict=True))

    pool = KindPool()
    for path in scores_of(store, states, metric):
        cell = read_stored(store, states, path)
        pool.add(cell.table, _merged(map(kinds_of, questions_in(cell.provenance["inputs"]))))
    pooled = pool.pooled()
    if not pooled:
        raise ConfigError(f"of={metric}: its questions in run {run_id} have no kinds, or it has no scores")
    return pooled


def _merged(kinds: Iterable[Kinds]) -> Kinds:
    return {key: kind for of_shard in kinds for key, kind in of_shard.items()}
