"""Counters of a run, which Prometheus reads at Ray's own endpoint on the driver's machine.

Only the process of the ProgressLog counts: a series for each worker that comes and goes would stay at Ray's
endpoint forever. Labels are names in the configuration (stages, nodes and metrics) and kinds of error. Generators are
not labels, because every checkpoint of a training run is a generator.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray.util.metrics import Counter, Gauge

from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.running.outcomes import ModelTime
from plumbline.pipelines.store.cells import Outcome


class CounterSpec(NamedTuple):
    """The type, description and labels of a counter."""

    kind: type[Counter] | type[Gauge]
    text: str
    labels: tuple[str, ...] = ()
    """Labels in addition to the stage and the node."""

    def exported(self, name: str) -> str:
        """Return the counter's name in Prometheus."""
        return f"ray_plumbline_{name}{'_total' if self.kind is Counter else ''}"


COUNTERS: Mapping[str, CounterSpec] = {
    "rows": CounterSpec(Counter, "Images or prompts that a node has finished, with or without a result", ("over",)),
    "failures": CounterSpec(Counter, "Rows that have no result, by the kind of their error", ("metric", "kind")),
    "kept_rows": CounterSpec(Counter, "Rows reused from earlier cells, without calling a model", ("metric",)),
    "cells": CounterSpec(Counter, "Cells by state: cached cells existed before the run", ("state",)),
    "model_seconds": CounterSpec(Counter, "Seconds that shards were with a node's models, summed over its workers"),
    "waited_seconds": CounterSpec(Counter, "Seconds that a node's models waited for rows to be read and decoded"),
    "retries": CounterSpec(Counter, "Shards begun again because a worker died or a machine was lost"),
    "waiting_shards": CounterSpec(Gauge, "Shards that a node has not finished"),
}


class Counters:
    """The counters of one process. Counting a shard takes Ray half a millisecond, so counts are summed before."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._waiting: dict[str, int] = {}
        self._numbers: Mapping[str, Any] = {
            name: spec.kind(f"plumbline_{name}", description=spec.text, tag_keys=("stage", "node", *spec.labels))
            for name, spec in COUNTERS.items()
        }

    def add_cached(self, node: str, cells: int) -> None:
        """Count cells of a node that need no computing."""
        self._add("cells", cells, node, state="cached")

    def add_shard(self, node: str, rows: int, outcomes: Mapping[str, Outcome], spent: ModelTime) -> None:
        """Count a finished shard, with the outcomes of its cells by metric."""
        stage = STAGES[_stage(node)]
        self._add("rows", rows, node, over=stage.over)
        self._add("model_seconds", spent.worked, node)
        self._add("waited_seconds", spent.waited, node)
        for metric, outcome in outcomes.items():
            self._add("cells", 1, node, state=outcome.state)
            self._add("kept_rows", outcome.kept, node, metric=metric)
            kinds = {"shard_failed": rows} if outcome.state == "failed" else outcome.kinds
            for kind, count in kinds.items():
                self._add("failures", count, node, metric=metric, kind=kind)

    def add_retry(self, node: str) -> None:
        """Count a shard that is begun again."""
        self._add("retries", 1, node)

    def set_waiting(self, node: str, shards: int) -> None:
        """Set the number of shards that a node has not finished."""
        self._waiting[node] = shards

    def send(self) -> None:
        """Pass the counts since the last call to Ray."""
        sums, self._sums = self._sums, defaultdict(float)
        for (name, labels), count in sums.items():
            if count > 0:  # Ray raises an error for 0
                self._numbers[name].inc(count, dict(labels))
        for node, shards in self._waiting.items():
            self._numbers["waiting_shards"].set(shards, {"stage": _stage(node), "node": node})

    def _add(self, name: str, count: float, node: str, **labels: str) -> None:
        self._sums[name, (("stage", _stage(node)), ("node", node), *labels.items())] += count


def _stage(node: str) -> str:
    return node.partition(":")[0]
