"""What a run counts while it goes on, as Prometheus reads it at Ray's own endpoint of the driver's machine.

One process counts, the one of the ProgressLog: a series for each of the workers that come and go would stay at Ray's
endpoint for ever. Labels are of what the configuration names: stages, nodes and metrics, and kinds of error.
Generators are not among them, for every checkpoint of a training is one.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray.util.metrics import Counter, Gauge

from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.running.outcomes import ModelTime


class Declared(NamedTuple):
    """A number that is counted."""

    kind: type[Counter] | type[Gauge]
    text: str
    labels: tuple[str, ...] = ()
    """Besides the stage and the node."""

    def exported(self, name: str) -> str:
        """What Prometheus calls it."""
        return f"ray_plumbline_{name}{'_total' if self.kind is Counter else ''}"


DECLARED: Mapping[str, Declared] = {
    "rows": Declared(Counter, "Images, or prompts, that a node is done with, whatever became of them", ("over",)),
    "failures": Declared(Counter, "Rows that have no result, by the kind of their error", ("metric", "kind")),
    "kept_rows": Declared(Counter, "Rows that earlier cells had, so that no model was called for them", ("metric",)),
    "cells": Declared(Counter, "Cells by what became of them: cached ones stood before the run", ("state",)),
    "model_seconds": Declared(Counter, "Seconds that shards were with a node's models, all of its workers together"),
    "waited_seconds": Declared(Counter, "Seconds that a node's models waited for rows to be read and decoded"),
    "retries": Declared(Counter, "Shards begun again because a worker died or a machine was lost"),
    "waiting_shards": Declared(Gauge, "Shards that a node has not finished"),
}


class Counters:
    """The numbers of one process. Ray takes half a millisecond to count a shard, so what came is added up first."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._waiting: dict[str, int] = {}
        self._numbers: Mapping[str, Any] = {
            name: one.kind(f"plumbline_{name}", description=one.text, tag_keys=("stage", "node", *one.labels))
            for name, one in DECLARED.items()
        }

    def standing(self, node: str, cells: int) -> None:
        """Cells of a node that need no computing."""
        self._add("cells", cells, node, state="cached")

    def finished(self, node: str, rows: int, outcomes: Mapping[str, Outcome], spent: ModelTime) -> None:
        """A shard, with the outcomes of its cells by metric."""
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

    def again(self, node: str) -> None:
        """A shard is begun once more."""
        self._add("retries", 1, node)

    def waiting(self, node: str, shards: int) -> None:
        """What a node has yet to finish."""
        self._waiting[node] = shards

    def send(self) -> None:
        """Gives Ray what came since the last time."""
        sums, self._sums = self._sums, defaultdict(float)
        for (name, labels), count in sums.items():
            if count > 0:  # Ray refuses to count by nothing
                self._numbers[name].inc(count, dict(labels))
        for node, shards in self._waiting.items():
            self._numbers["waiting_shards"].set(shards, {"stage": _stage(node), "node": node})

    def _add(self, name: str, count: float, node: str, **labels: str) -> None:
        self._sums[name, (("stage", _stage(node)), ("node", node), *labels.items())] += count


def _stage(node: str) -> str:
    return node.partition(":")[0]
