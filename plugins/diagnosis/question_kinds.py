"""Computes mean scores of a run's questions by kind, from the cells of the `scores` and `questions` stages."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.question_cells import find_scores_cells, read_stored_cell, select_question_cells
from plumbline.pipelines.store.runs import find_run, read_cell_states, read_manifest
from plumbline.pipelines.store.store import Store

KindByQuestion = Mapping[tuple[str, str], str | None]
"""Kind (subject) of a question, by prompt_id and question_id."""


class KindScore(NamedTuple):
    """Mean score of all questions of one kind about one generator's images."""

    generator: str
    level: int
    """Level of the kind: 1 for the part before a dash, such as `Attribute`, and for a kind without a dash; 2 for the
    whole of a kind with a dash, such as `Attribute - Color`.
    """
    kind: str
    mean: float
    n: int
    """Number of answers. A question about a row of several images counts as one answer, the mean over the images."""


class KindSums:
    """Sums of the scores of questions, or of a judge's ratings, by generator and kind."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, int, str], list[float]] = defaultdict(list)

    def add(self, scores: pa.Table, kinds: KindByQuestion) -> None:
        """Add a table of scores (schema ELEMENT_SCORES), skipping rows with errors and questions that were left out."""
        for row in scores.to_pylist():
            if row["error"] is not None:
                continue
            for kind, score in _list_scored_elements(row, kinds):
                broad, dash, _ = kind.partition("-")
                for level, name in [(1, broad.strip()), (2, kind)] if dash else [(1, kind)]:
                    self._scores[row["generator"], level, name].append(score)

    def compute_means(self) -> list[KindScore]:
        """Return the means, sorted by level, kind and generator."""
        rows = (
            KindScore(generator, level, kind, math.fsum(scores) / len(scores), len(scores))
            for (generator, level, kind), scores in self._scores.items()
        )
        return sorted(rows, key=lambda row: (row.level, row.kind, row.generator))


def _list_scored_elements(row: Mapping[str, Any], kinds: KindByQuestion) -> Iterator[tuple[str, float]]:
    """Yield the kind and score of each question or rating of an image, skipping those without a kind or score."""
    if row["elements"] is None:
        yield from ((rating["name"].rstrip(" 0123456789"), rating["value"]) for rating in row["ratings"] or ())
        return
    for element in row["elements"]:
        kind = kinds.get((row["prompt_id"], element["question_id"]))
        if kind and element["score"] is not None:
            yield kind, element["score"]


MAX_CACHED_SHARDS = 64
"""Maximum number of shards for which the kinds of questions are cached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindsConfig:
    """Options of jobs.kinds: the run, and the metric whose question scores are shown by kind."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    of: str
    """Name of one of the run's metrics."""
    run: str = "latest"
    """Id of a run (plumbline status); `latest` selects the newest."""
    storage: StorageConfig = field(default_factory=StorageConfig)


def compute_kind_scores(store: Store, run: str, metric: str) -> list[KindScore]:
    """Return the mean scores of a metric's questions by kind.

    Raises ConfigError if the metric is not in the run, or if none of its scored questions has a kind.
    """
    run_id = find_run(store, run)
    metrics = read_manifest(store, run_id)["metrics"]
    if metric not in metrics:
        raise ConfigError(f"of={metric}: run {run_id} does not contain this metric; it has {', '.join(metrics)}")
    states = read_cell_states(store, run_id)

    @lru_cache(maxsize=MAX_CACHED_SHARDS)
    def read_kinds(path: str) -> KindByQuestion:
        table = store.read(path, draft=states.get(path) == "draft", columns=["prompt_id", "question_id", "kind"])
        prompts, questions, kinds = (table.column(name).to_pylist() for name in ("prompt_id", "question_id", "kind"))
        return dict(zip(zip(prompts, questions, strict=True), kinds, strict=True))

    pool = KindSums()
    for path in find_scores_cells(store, states, metric):
        cell = read_stored_cell(store, states, path)
        inputs = select_question_cells(cell.provenance["inputs"])
        pool.add(cell.table, {key: kind for kinds in map(read_kinds, inputs) for key, kind in kinds.items()})
    means = pool.compute_means()
    if not means:
        raise ConfigError(
            f"of={metric}: expected scores for questions that have a kind, found none in run {run_id}; name another "
            "metric"
        )
    return means
