"""An actor serves two calls at a time: it reads and decodes one shard while the model computes another."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plumbline.operators.base.batches import notify_of_calls, record_calls
from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.base.rows import table
from plumbline.operators.base.schemas import QUESTIONS
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.base.storage import StorageConfig, WriteError
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running import actor as actor_module
from plumbline.pipelines.running.actor import CALLS_PER_ACTOR, RunSettings, StageActor
from plumbline.pipelines.running.attempts import NO_HISTORY
from plumbline.pipelines.running.driver_environment import DriverEnvironment
from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.running.outcomes import CallReporter, FinishedShard, ModelTime, ShardName, name_shard
from plumbline.pipelines.running.progress import ProgressLog, WorkerReport
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import Cell, Outcome, Shard, Work, dump_bundle, load_bundle
from plumbline.pipelines.store.store import Store
from tests.bench_of import compute_cells, plan_bench, write_benchmark
from tests.commands import open_store_at

TIMEOUT_SECONDS = 20
FIRST_SHARD = ShardName("bench", "bench", "first")
NO_URIS = UriReader(roots=(), storage=StorageConfig(), max_bytes=0)


class OverlappingStage:
    """A stage that computes one shard while another is prepared, and records how many are computed at once."""

    side_by_side = False
    can_split_rows = False

    def __init__(self) -> None:
        self.prepared = threading.Barrier(2)
        self.computing = 0
        self.most_computing = 0

    def read_windows(self, work: Work, cells: Sequence[Cell], size: int) -> list[str]:
        return [work.shard.name]

    def prepare(self, window: str) -> str:
        if window == "second":
            self.prepared.wait(TIMEOUT_SECONDS)
        return window

    def compute(self, prepared: str) -> Mapping[str, pa.Table]:
        self.computing += 1
        self.most_computing = max(self.most_computing, self.computing)
        if prepared == "first":
            self.prepared.wait(TIMEOUT_SECONDS)
        self.computing -= 1
        record_calls(2)
        return dict.fromkeys(("vqascore", "other"), table([], QUESTIONS))


class ClearableProgressLog(ProgressLog):
    """A progress log that each test clears; all tests share one process, because it takes seconds to start."""

    def forget(self) -> None:
        vars(self).clear()
        self.__init__("a sweep")  # type: ignore[misc]


@pytest.fixture(scope="module")
def progress(ray_cluster: None) -> Iterator[Any]:
    import ray

    progress = ray.remote(ClearableProgressLog).options(num_cpus=0).remote()
    yield progress
    ray.kill(progress)


@pytest.fixture
def actor(progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageActor:
    import ray

    monkeypatch.setattr(actor_module, "make_stages", lambda *given, **options: {"bench": OverlappingStage()})
    ray.get(progress.forget.remote())
    store = open_store_at(tmp_path)
    given = DriverEnvironment(variables={}, probes=())
    context = StageContext(store=store, metrics=(), limits=ImageLimits(), clips=Clips(), uris=NO_URIS, prompt_shards=())
    node = Node(name="questions", stage="questions", models={}, metrics={})
    terms = RunSettings(store=store, contexts={"bench": context}, environment=given, progress=progress, max_attempts=4)
    return StageActor(node, PoolConfig(), terms)


def make_work(name: str) -> Work:
    shard = Shard(
        group="bench", name=name, place=StorageConfig().locate(name), size=1, etag="1", row_groups=(0,), rows=2
    )
    cell = Cell(
        node="questions", stage="questions", metric="vqascore", key=name, path=f"questions/{name}.parquet", inputs={}
    )
    return Work(shard=shard, cells=(cell,), outcomes={}, benchmark="bench")


def compute_bundle(actor: StageActor, *works: Work) -> tuple[Work, ...]:
    """Send the pieces of work to the actor as one bundle, and return them with their outcomes."""
    (computed,) = actor({"bundle": np.array([dump_bundle(works)], dtype=object)})["bundle"]
    return load_bundle(computed, StorageConfig())


def test_the_next_shard_is_prepared_while_this_one_is_computed(actor: StageActor) -> None:
    import ray

    states: dict[str, str] = {}

    def call(name: str) -> None:
        (done,) = compute_bundle(actor, make_work(name))
        (outcome,) = done.outcomes.values()
        states[name_shard(done).name] = outcome.state

    calls = [threading.Thread(target=call, args=(name,)) for name in ("first", "second")]
    assert len(calls) == CALLS_PER_ACTOR
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join(2 * TIMEOUT_SECONDS)
    assert states == {"first": "committed", "second": "committed"}
    stage: Any = actor.stages["bench"]
    assert stage.most_computing == 1
    events = ray.get(actor.progress.take_unread_reports.remote()).events
    assert ProgressTotals(events).nodes["questions"].calls == 4
    assert not ray.get(actor.progress.take_unread_reports.remote()).events, "each event is delivered once"


def test_a_cell_that_cannot_be_saved_fails_alone(actor: StageActor, monkeypatch: pytest.MonkeyPatch) -> None:
    work = make_work("first")
    second = replace(work.cells[0], metric="other", key="other", path="questions/other.parquet")
    save = Store.save

    def fail_to_save(self: Store, cell: Cell, table: pa.Table, **provenance: Any) -> Outcome:
        if cell.metric == "other":
            raise WriteError("the disk is full: free some space")
        return save(self, cell, table, **provenance)

    monkeypatch.setattr(Store, "save", fail_to_save)
    monkeypatch.setattr(actor.stages["bench"], "prepare", lambda window: "alone")
    (done,) = compute_bundle(actor, replace(work, cells=(*work.cells, second)))
    assert {path: outcome.state for path, outcome in done.outcomes.items()} == {
        work.cells[0].path: "committed",
        second.path: "failed",
    }
    assert done.outcomes[second.path].message == "the disk is full: free some space"


class RowStage:
    """A stage that records in its table whether it received a complete shard or single rows."""

    side_by_side = False
    can_split_rows = True

    def read_windows(self, work: Work, cells: Sequence[Cell], size: int) -> list[str]:
        return [f"row {row}" for row in range(work.shard.rows)] if size == 1 else ["whole"]

    def prepare(self, window: str) -> str:
        return window

    def refuse(self, window: str, error: RowError) -> str:
        return window.replace("row", "refused")

    def compute(self, prepared: str) -> Mapping[str, pa.Table]:
        return {"vqascore": table([{"prompt_id": prepared, "question_id": prepared}], QUESTIONS)}


def mark_as_started(actor: StageActor, *machines: str, row: int | None = None) -> None:
    """Note in the progress log that processes on these machines started the first shard, and died.

    The name `here` stands for the actor's own machine; all other machines are lost. `row` is the row that was in
    progress, or None if the shard was not computed row by row.
    """
    import ray

    for machine in machines:
        begun = actor.machine if machine == "here" else machine
        ray.get(actor.progress.note_start.remote("questions", FIRST_SHARD, begun))
    ray.get(actor.progress.note_row.remote("questions", FIRST_SHARD, row))


def compute_shard(actor: StageActor) -> list[str]:
    """Return how the actor computed each row of the shard, as stored in the table, or the actor's error message."""
    (done,) = compute_bundle(actor, make_work("first"))
    ((path, outcome),) = done.outcomes.items()
    return [outcome.message] if outcome.message else actor.store.read(path).column("prompt_id").to_pylist()


@pytest.mark.parametrize(
    ("machines", "row", "how"),
    [
        ([], None, ["whole"]),
        (["here"], None, ["whole"]),
        (["here", "here"], None, ["row 0", "row 1"]),
        (["here", "here", "here"], 1, ["row 0", "refused 1"]),
        (["here", "here", "lost", "lost"], 1, ["row 0", "row 1"]),
        (["here"] * 4, None, ["the worker died 4 times on this shard"]),
        (["lost"] * 4, None, ["whole"]),
        (["lost"] * 5, None, ["the machine that computed this shard was lost 5 times"]),
    ],
)
def test_a_shard_is_repeated_after_one_death_then_split_into_rows_and_lost_machines_do_not_count(
    machines: list[str], row: int | None, how: list[str], actor: StageActor
) -> None:
    actor.stages = {"bench": RowStage()}  # type: ignore[dict-item]
    mark_as_started(actor, *machines, row=row)
    assert compute_shard(actor) == how


def test_a_bundle_whose_worker_died_continues_and_the_interrupted_shard_comes_last(actor: StageActor) -> None:
    """The process had finished the first of four shards, and died on the second."""
    import ray

    done = FinishedShard(FIRST_SHARD, 2, {"vqascore": Outcome(state="draft", rows=7)}, ModelTime())
    for name, report in (
        (FIRST_SHARD, WorkerReport()),
        (FIRST_SHARD._replace(name="second"), WorkerReport(finished=done)),
    ):
        ray.get(actor.progress.begin.remote("questions", name, actor.machine, report))
    shards: list[str] = []

    class Recorder(RowStage):
        def read_windows(self, work: Work, cells: Sequence[Cell], size: int) -> list[str]:
            shards.append(work.shard.name)
            return super().read_windows(work, cells, size)

    actor.stages = {"bench": Recorder()}  # type: ignore[dict-item]
    works = compute_bundle(actor, *map(make_work, ("first", "second", "third", "last")))
    assert shards == ["third", "last", "second"]
    assert [work.shard.name for work in works] == ["first", "second", "third", "last"]
    assert [next(iter(work.outcomes.values())).rows for work in works] == [7, 1, 1, 1]
    events = ray.get(actor.progress.take_unread_reports.remote()).events
    assert ProgressTotals(events).nodes["questions"].rows == 4 * 2, "each is counted once"
    assert ray.get(actor.progress.get_history.remote("questions", FIRST_SHARD)) == NO_HISTORY, (
        "the history ends with the bundle"
    )


def test_a_repeated_shard_whose_cells_are_committed_is_not_computed_again(actor: StageActor) -> None:
    actor.stages = {"bench": RowStage()}  # type: ignore[dict-item]
    assert compute_shard(actor) == ["whole"]
    mark_as_started(actor, "lost")
    actor.stages = {}
    (done,) = compute_bundle(actor, make_work("first"))
    assert [(outcome.state, outcome.rows) for outcome in done.outcomes.values()] == [("committed", 1)]


def test_a_repeated_shard_is_computed_if_the_store_does_not_answer(
    actor: StageActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_answer(self: Store, path: str) -> bool:
        raise ConfigError(f"{path}: the store does not answer")

    monkeypatch.setattr(Store, "exists", fail_to_answer)
    monkeypatch.setattr(actor.stages["bench"], "prepare", lambda window: "alone")
    actor.settings = replace(actor.settings, repeated=True)
    (done,) = compute_bundle(actor, make_work("again"))
    assert [outcome.state for outcome in done.outcomes.values()] == ["committed"]


def test_counts_of_calls_are_sent_periodically_and_none_is_lost() -> None:
    sent: list[int] = []
    seldom, always = CallReporter(sent.append, seconds=1e9), CallReporter(sent.append, seconds=0)
    seldom.add(3)
    seldom.add(4)
    assert sent == []
    seldom.send()
    seldom.send()
    assert sent == [7]
    seldom.add(1)
    assert (seldom.take_unreported_calls(), seldom.take_unreported_calls()) == (1, 0)
    always.add(2)
    assert sent == [7, 2]


def test_a_stage_makes_the_number_of_calls_in_its_plan(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=4)
    planned = plan_bench(folder, tmp_path / "store", "metric=[clipscore]")
    calls: list[int] = []
    with notify_of_calls(calls.append):
        compute_cells(planned)
    (expected,) = (item.steps for item in planned.plan.nodes if item.node.model is not None)
    assert sum(calls) == expected and len(calls) > 2, "calls are reported while a shard is computed"
