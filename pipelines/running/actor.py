"""One worker of a pool: it loads a model once and turns claim checks into committed cells."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import ray

from operators.batches import device_lost, telling_calls
from operators.errors import PlumblineError, RowError
from operators.stages.table import STAGES
from pipelines.cells.cells import Cell, Outcome, Shard, Work
from pipelines.cells.plan import Node
from pipelines.cells.store import BrokenCell
from pipelines.running.errors import RunnerError, one_line
from pipelines.running.logs import Forwarder, about, take_over
from pipelines.running.pools import PoolConfig
from pipelines.running.process import Deadline, keep_freed_memory, set_torch_threads
from pipelines.running.progress import FIRST_TIME, History
from pipelines.running.stages import NodeStage, StageContext
from pipelines.running.surroundings import Surroundings

LOG = logging.getLogger(__name__)
LEVELS = {"committed": logging.INFO, "draft": logging.WARNING, "failed": logging.ERROR}
SHORT_KEY = 8
"""Digits of a cell's key that its file is named by."""
CALLS_PER_ACTOR = 2
"""One call computes while the other reads and decodes the next shard, or commits the last one."""
SECONDS_BETWEEN_NEWS = 1.0
"""At least, of the calls that an actor's models have answered."""
DEADLY_ROW = RowError(
    "killed_worker",
    "the process that worked on this row died, or went over the pool's deadline; look at the image, or give the stage "
    "more memory or time (cluster.pools)",
    retryable=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTerms:
    """What all actors of a run are given."""

    context: StageContext
    surroundings: Surroundings
    progress: Any
    """The ProgressLog, as Ray hands it out."""
    max_attempts: int
    repeated: bool = False
    """Whether the wave was begun before, so that some of its cells may be committed."""
    log_level: int | None = None
    """From which on workers send the lines of their log to the driver; None where there is none."""


class StageActor:
    """One actor of a node's pool: loads its model once, then turns shards into committed cells."""

    def __init__(self, node: Node, pool: PoolConfig, terms: RunTerms) -> None:
        self.node = node
        self.terms = terms
        self.store = terms.context.store
        self.limits = terms.context.limits
        self.progress = terms.progress
        self.deadline = Deadline(pool.deadline)
        self.computing = threading.Lock()
        self.turns = Turns(CALLS_PER_ACTOR)
        self.calls = CallNews(lambda made: self.progress.called.remote(node.name, made))
        self.machine = ray.get_runtime_context().get_node_id()
        self.said_of = {"stage": node.stage, "node": node.name, "machine": ray.util.get_node_ip_address()}
        if terms.log_level is not None:
            take_over(Forwarder(self.progress), terms.log_level)
        unfinished = ray.get(self.progress.starting.remote(node.name, self.machine))
        try:
            if unfinished > pool.max_size + terms.max_attempts:
                raise RunnerError(f"its workers died {unfinished} times while loading; they may lack memory")
            terms.surroundings.enter()
            keep_freed_memory()
            if node.model is not None:
                set_torch_threads(pool.threads)
            self.stage = NodeStage(node, terms.context, decoders=max(1, int(pool.num_cpus)))
        except Exception as error:
            with about(**self.said_of):
                LOG.error("a worker cannot start: %s", one_line(error), exc_info=error)
            ray.get(self.progress.failed_to_start.remote(node.name, one_line(error)))
            raise
        with about(**self.said_of):
            LOG.info("a worker is ready")
        ray.get(self.progress.ready.remote(node.name, self.machine))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """One row of the dataset, a Work as JSON, back with the outcomes of this node's cells.

        Ray starts a dead actor again and gives it the same rows. A shard that was begun before is repeated whole and
        alone, for it may have died of its neighbour; after another death it goes row by row, so that the next one tells
        which row to leave out. After `max_attempts` deaths, or lost machines, it fails untried.
        """
        work = Work.from_json(str(batch["work"][0]))
        cells = [cell for cell in work.cells if cell.node == self.node.name]
        if not cells:
            return batch
        with about(**self.said_of, **_said_of(work.shard, self.node.stage)):
            outcomes = self._of_shard(work, cells)
        return {"work": [replace(work, outcomes={**work.outcomes, **outcomes}).to_json()]}

    def _of_shard(self, work: Work, cells: Sequence[Cell]) -> dict[str, Outcome]:
        """What became of the cells of a shard, once it is counted."""
        name, spent = shard_name(work), Stopwatch()
        history = ray.get(self.progress.history.remote(self.node.name, name))
        if history != FIRST_TIME:
            LOG.warning("begun again after %d deaths and %d lost machines", history.deaths, history.losses)
        if (reason := self._given_up(history)) is not None:
            outcomes = {cell.path: Outcome(state="failed", message=reason) for cell in cells}
        else:
            with self.turns.alone() if history.deaths else self.turns.shared(), telling_calls(self.calls.note):
                ray.get(self.progress.started.remote(self.node.name, name, self.machine))
                outcomes = self._outcomes(work, cells, history, spent)
        for cell in cells:
            _log_cell(cell, outcomes[cell.path])
        by_metric = {cell.metric: outcomes[cell.path] for cell in cells}
        seconds = spent.seconds if self.node.models else 0.0
        self.calls.send()
        # waited for, so that whoever has the outcomes finds them counted
        ray.get(self.progress.finished.remote(self.node.name, name, work.shard.rows, by_metric, seconds))
        return outcomes

    def _given_up(self, history: History) -> str | None:
        """Why a shard is not tried again, if it is not; lost machines count by themselves, for they may not be its."""
        if history.deaths >= self.terms.max_attempts:
            return f"the worker died {history.deaths} times on this shard"
        if history.losses > self.terms.max_attempts:
            return f"the machine was lost {history.losses} times under this shard"
        return None

    def _outcomes(self, work: Work, cells: Sequence[Cell], history: History, spent: "Stopwatch") -> dict[str, Outcome]:
        """What became of each cell; a failure of the whole shard fails its cells and nothing else."""
        blocked = {cell.path: failure for cell in cells if (failure := failed_input(cell, work.outcomes))}
        if self.terms.repeated or history != FIRST_TIME:
            blocked |= self._standing(cells)
        able = [cell for cell in cells if cell.path not in blocked]
        if not able:
            return blocked
        try:
            if history.deaths > 1 and self.stage.rows_alone:
                tables = self._row_by_row(work, able, history, spent)
            else:
                tables = self._whole(work, able, spent)
        except Exception as error:
            if device_lost(error):
                os._exit(1)  # no later call of this process can use the device; Ray starts another one
            return blocked | {cell.path: failure_of(error) for cell in able}
        return blocked | {cell.path: self._save(cell, tables[cell.metric]) for cell in able}

    def _standing(self, cells: Sequence[Cell]) -> dict[str, Outcome]:
        """The cells that were committed by a process whose word of it was lost."""
        standing = {}
        for cell in cells:
            with suppress(PlumblineError):  # a store that does not answer: the cell is computed, and saved if it can be
                if not cell.renew and self.store.exists(cell.path):
                    standing[cell.path] = self.store.read_cell(cell.path).outcome()
        return standing

    def _save(self, cell: Cell, table: pa.Table) -> Outcome:
        """A cell that cannot be saved has failed, and the others of its shard have not."""
        try:
            return self.store.save(cell, table, limits=self.limits.semantic())
        except Exception as error:
            return failure_of(error)

    def _whole(self, work: Work, cells: Sequence[Cell], spent: "Stopwatch") -> Mapping[str, pa.Table]:
        with self.deadline():
            prepared = self.stage.prepare(work, cells)
        with nullcontext() if self.stage.side_by_side else self.computing, self.deadline(), spent:
            return self.stage.compute(prepared)

    def _row_by_row(
        self, work: Work, cells: Sequence[Cell], history: History, spent: "Stopwatch"
    ) -> Mapping[str, pa.Table]:
        """The tables of a shard that ended its process before; each row is announced before it is touched."""
        name = shard_name(work)
        tables = []
        for row in range(work.shard.rows):
            if row in history.deadly:
                tables.append(self.stage.compute(self.stage.refuse_row(work, cells, row, DEADLY_ROW)))
                continue
            ray.get(self.progress.started_row.remote(self.node.name, name, row))
            with self.deadline():
                prepared = self.stage.prepare_row(work, cells, row)
                with spent:
                    tables.append(self.stage.compute(prepared))
        ray.get(self.progress.started_row.remote(self.node.name, name, None))
        return {cell.metric: pa.concat_tables([table[cell.metric] for table in tables]) for cell in cells}


class CallNews:
    """Sends how many calls of models were made, now and then while they are made and not each time."""

    def __init__(self, send: Callable[[int], object], *, seconds: float = SECONDS_BETWEEN_NEWS) -> None:
        self._send, self._seconds = send, seconds
        self._lock = threading.RLock()
        self._unsent = 0
        self._sent = time.monotonic()

    def note(self, made: int) -> None:
        """Counts some, and sends all that are not sent yet where the last time is long enough ago."""
        with self._lock:
            self._unsent += made
            if time.monotonic() - self._sent >= self._seconds:
                self.send()

    def send(self) -> None:
        """Sends those that are not sent yet; after it all are, whichever thread sends them."""
        with self._lock:
            made, self._unsent, self._sent = self._unsent, 0, time.monotonic()
            if made:
                self._send(made)


class Stopwatch:
    """The seconds that its bodies took, all together."""

    seconds = 0.0
    began = 0.0

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self.began


class Turns:
    """Lets calls run side by side, or one of them alone."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = threading.Semaphore(places)
        self.claiming = threading.Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self.claiming:
            self.free.acquire()
        try:
            yield
        finally:
            self.free.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self.claiming:
            for _ in range(self.places):
                self.free.acquire()
        try:
            yield
        finally:
            self.free.release(self.places)


def failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """The failure of a cell upstream, passed on."""
    failures = [outcomes[path] for path in cell.upstream if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def failure_of(error: Exception) -> Outcome:
    """Of a cell, with the cell upstream that it failed of where that is to be computed anew."""
    LOG.error("%s", one_line(error), exc_info=error)
    broken = (error.path,) if isinstance(error, BrokenCell) else ()
    return Outcome(state="failed", message=one_line(error), broken=broken)


def _said_of(shard: Shard, stage: str) -> dict[str, str]:
    """What lines about a shard say of it; the group of a shard of images is their generator."""
    group = {"images": "generator", "prompts": "benchmark"}[STAGES[stage].over]
    return {group: shard.group, "shard": shard.name}


def _log_cell(cell: Cell, outcome: Outcome) -> None:
    counts = [f"{outcome.rows} rows", *(f"{count} {kind}" for kind, count in outcome.kinds.items())]
    kept = [f"{outcome.kept} kept"] if outcome.kept else []
    said = outcome.message or ", ".join(counts + kept)
    with about(metric=cell.metric, cell=cell.key[:SHORT_KEY]):
        LOG.log(LEVELS[outcome.state], "%s: %s", outcome.state, said)


def shard_name(work: Work) -> str:
    """What a shard is called in progress and messages."""
    return f"{work.shard.group}/{work.shard.name}"
