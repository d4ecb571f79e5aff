"""One actor's two calls at a time: the next shard is read and decoded while the model works on this one."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.images import ImageLimits
from operators.rows import QUESTIONS, table
from pipelines.cells.cells import Cell, Outcome, Shard, Work, make_cell, make_recipe
from pipelines.cells.plan import Node
from pipelines.cells.store import Store
from pipelines.running import actor as actor_module
from pipelines.running.actor import CALLS_PER_ACTOR, StageActor, shard_name
from pipelines.running.pools import PoolConfig
from pipelines.running.progress import ProgressLog
from pipelines.running.stages import StageContext
from pipelines.sources.uris import Uris
from pipelines.storage import StorageConfig, WriteError

PATIENCE = 20
NOWHERE = Uris(roots=(), storage=StorageConfig(), max_bytes=0)


class OverlappingStage:
    """Computes a shard only once another one is prepared, and notes when two are computed at once."""

    side_by_side = False
    rows_alone = False

    def __init__(self, node: Node, context: StageContext, decoders: int) -> None:
        self.prepared = threading.Barrier(2)
        self.computing = 0
        self.most_computing = 0

    def prepare(self, work: Work, cells: Sequence[Cell]) -> str:
        if work.shard.name == "second":
            self.prepared.wait(PATIENCE)
        return work.shard.name

    def compute(self, prepared: str) -> Mapping[str, pa.Table]:
        self.computing += 1
        self.most_computing = max(self.most_computing, self.computing)
        if prepared == "first":
            self.prepared.wait(PATIENCE)
        self.computing -= 1
        return dict.fromkeys(("vqascore", "other"), table([], QUESTIONS))


@pytest.fixture
def actor(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageActor]:
    import ray

    monkeypatch.setattr(actor_module, "NodeStage", OverlappingStage)
    progress = ray.remote(ProgressLog).options(num_cpus=0).remote()
    store = Store(url=str(tmp_path), storage=StorageConfig())
    context = StageContext(store=store, storage=StorageConfig(), limits=ImageLimits(), uris=NOWHERE, prompt_shards=())
    node = Node(name="questions", stage="questions", models={}, metrics={})
    yield StageActor(node, context, progress, PoolConfig(), 2)
    ray.kill(progress)


def batch(name: str) -> dict[str, Any]:
    shard = Shard(group="bench", name=name, url=name, size=1, etag="1", row_groups=(0,), rows=1)
    cell = make_cell(
        make_recipe("questions", 1, {}), shard, f'"{name}"', node="questions", metric="vqascore", inputs={}
    )
    return {"work": np.array([Work(shard=shard, cells=(cell,), outcomes={}).to_json()], dtype=object)}


def test_the_next_shard_is_prepared_while_this_one_is_computed(actor: StageActor) -> None:
    states: dict[str, str] = {}

    def call(name: str) -> None:
        done = Work.from_json(actor(batch(name))["work"][0])
        (outcome,) = done.outcomes.values()
        states[shard_name(done)] = outcome.state

    calls = [threading.Thread(target=call, args=(name,)) for name in ("first", "second")]
    assert len(calls) == CALLS_PER_ACTOR
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join(2 * PATIENCE)
    assert states == {"bench/first": "committed", "bench/second": "committed"}
    assert isinstance(actor.stage, OverlappingStage) and actor.stage.most_computing == 1


def test_a_cell_that_cannot_be_saved_fails_alone(actor: StageActor, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work.from_json(batch("first")["work"][0])
    second = make_cell(
        make_recipe("questions", 2, {}), work.shard, '"first"', node="questions", metric="other", inputs={}
    )
    save = Store.save

    def refusing(self: Store, cell: Cell, table: pa.Table, **provenance: Any) -> Outcome:
        if cell.metric == "other":
            raise WriteError("the disk is full: free some space")
        return save(self, cell, table, **provenance)

    monkeypatch.setattr(Store, "save", refusing)
    monkeypatch.setattr(actor.stage, "prepare", lambda work, cells: "alone")
    both = replace(work, cells=(*work.cells, second))
    done = Work.from_json(actor({"work": np.array([both.to_json()], dtype=object)})["work"][0])
    assert {path: outcome.state for path, outcome in done.outcomes.items()} == {
        work.cells[0].path: "committed",
        second.path: "failed",
    }
    assert done.outcomes[second.path].message == "the disk is full: free some space"
