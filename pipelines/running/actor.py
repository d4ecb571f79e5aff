"""One worker of a pool: it loads its models once, and then computes the cells of one shard after another."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import ray

from plumbline.operators.base.batches import is_device_lost, notify_of_calls
from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR
from plumbline.operators.stages.stage import Inputs
from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.base.logs import LogForwarder, add_log_fields, route_lines_to_handler
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running.attempts import NO_HISTORY, ShardHistory
from plumbline.pipelines.running.driver_environment import DriverEnvironment
from plumbline.pipelines.running.errors import RunnerError, format_error
from plumbline.pipelines.running.machines import find_own_resources
from plumbline.pipelines.running.outcomes import (
    CallReporter,
    ComputedRows,
    FinishedShard,
    ModelTime,
    ShardName,
    compute_cells,
    finish_shard,
    list_draft_paths,
    make_log_fields,
    name_shard,
)
from plumbline.pipelines.running.process import Deadline, RunStopping, tune_process
from plumbline.pipelines.running.progress import WorkerReport
from plumbline.pipelines.running.stages import WINDOW_ROWS, NodeStage, StageContext, make_stages
from plumbline.pipelines.store.cells import Cell, Outcome, Work, dump_bundle, load_bundle
from plumbline.pipelines.store.store import Store

LOG = logging.getLogger(__name__)
CALLS_PER_ACTOR = 2
"""Number of concurrent calls per actor: while one call computes, the other reads the next shard or commits the last."""
DEADLY_ROW_ERROR = RowError(
    "killed_worker",
    "the process that computed this row died, or exceeded the pool's deadline; check the image, or give the stage "
    "more memory or time (cluster.pools)",
    retryable=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Settings that all actors of a run share."""

    store: Store
    contexts: Mapping[str, StageContext]
    """Stage contexts by benchmark."""
    environment: DriverEnvironment
    progress: Any
    """Actor handle of the ProgressLog."""
    max_attempts: int
    repeated: bool = False
    """True if this wave is a retry, so that some of its cells may already be committed."""
    log_level: int | None = None
    """Lowest level of the log lines that workers send to the driver; None sends no lines."""


class StageActor:
    """Ray actor that loads a node's models and computes the node's cells; a pool consists of several of these."""

    def __init__(self, node: Node, pool: PoolConfig, settings: RunSettings) -> None:
        self.node = node
        self.settings = settings
        self.store = settings.store
        self.progress = settings.progress
        self.deadline = Deadline(pool.deadline)
        self.computing = threading.Lock()
        self.idle_since = time.monotonic()
        """Time at which the models last became idle."""
        self.calls_lock = SharedOrExclusiveLock(CALLS_PER_ACTOR)
        self.calls = CallReporter(lambda made: self._send_report(WorkerReport(calls=made)))
        self.lines = LogForwarder(lambda lines: self._send_report(WorkerReport(lines=lines)))
        self.machine = ray.get_runtime_context().get_node_id()
        self.log_fields = {"stage": node.stage, "node": node.name, "machine": ray.util.get_node_ip_address()}
        if settings.log_level is not None:
            route_lines_to_handler(self.lines, settings.log_level)
        unfinished = ray.get(self.progress.note_loading.remote(node.name, self.machine))
        try:
            if unfinished > pool.max_size + settings.max_attempts:
                raise RunnerError(
                    f"its workers died {unfinished} times while loading; they may have run out of memory: "
                    "use a smaller model, or larger machines"
                )
            settings.environment.apply()
            tune_process(pool.threads if node.model is not None else None)
            machine = find_own_resources()
            decoders = pool.count_decoders(machine.cpus, machine.gpus)
            self.stages = make_stages(node, settings.contexts, decoders=decoders)
        except Exception as error:
            with add_log_fields(**self.log_fields):
                LOG.error("a worker cannot start: %s", format_error(error), exc_info=error)
            ray.get(self.progress.note_start_failure.remote(node.name, format_error(error)))
            raise
        with add_log_fields(**self.log_fields):
            LOG.info("a worker is ready")
        ray.get(self.progress.note_ready.remote(node.name, self.machine, self._take_report()))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute this node's cells for the bundle of shards in a one-row batch.

        If an actor dies, Ray restarts it with the same bundle; attempts.py describes how its shards are retried.

        Returns:
            The batch, with the outcomes of this node's cells added.
        """
        (bundle,) = batch["bundle"]
        works = list(load_bundle(str(bundle), self.store.place.storage))
        outcomes = self._compute_bundle([work for work in works if work.select_cells(self.node.name)])
        for number, work in enumerate(works):
            own = {cell.path: outcomes[name_shard(work)][cell.metric] for cell in work.select_cells(self.node.name)}
            works[number] = replace(work, outcomes={**work.outcomes, **own})
        return {"bundle": [dump_bundle(works)]}

    def _compute_bundle(self, works: Sequence[Work]) -> dict[ShardName, Mapping[str, Outcome]]:
        """Compute the shards and report the outcomes; return the outcomes by shard and metric.

        The report on a shard is sent together with the request to start the next shard. If an earlier worker died on a
        shard, the shard is computed last, on its own.
        """
        outcomes: dict[ShardName, Mapping[str, Outcome]] = {}
        suspects: list[tuple[Work, ShardHistory]] = []
        done: FinishedShard | None = None
        if not works:
            return outcomes
        with self.calls_lock.hold_shared():
            for work in works:
                report, name = self._take_report(done), name_shard(work)
                history = ray.get(self.progress.begin.remote(self.node.name, name, self.machine, report))
                done = None
                if history.stopping:
                    outcomes[name] = self._abandon_shard(work)
                elif history.outcomes is not None:
                    outcomes[name] = history.outcomes
                elif history.deaths:
                    suspects.append((work, history))
                else:
                    done = self._compute_shard(work, history)
                    outcomes[name] = self._abandon_shard(work) if done is None else done.outcomes
            self._report_last_shard(done, () if suspects else works)
        while suspects:
            work, history = suspects.pop(0)
            if STOP_REQUESTED.is_set():
                done = None
            elif history.explain_giving_up(self.settings.max_attempts):
                done = self._compute_shard(work, history)
            else:
                with self.calls_lock.hold_exclusively():
                    ray.get(self.progress.note_start.remote(self.node.name, name_shard(work), self.machine))
                    done = self._compute_shard(work, history)
            outcomes[name_shard(work)] = self._abandon_shard(work) if done is None else done.outcomes
            self._report_last_shard(done, () if suspects else works)
        return outcomes

    def _report_last_shard(self, done: FinishedShard | None, bundle: Sequence[Work]) -> None:
        """Report the last finished shard and wait for the reply, so that outcomes are counted before they are used."""
        names = [name_shard(work) for work in bundle]
        ray.get(self.progress.report.remote(self.node.name, self._take_report(done), names))

    def _compute_shard(self, work: Work, history: ShardHistory) -> FinishedShard | None:
        cells, spent = work.select_cells(self.node.name), ModelTime()
        with (
            add_log_fields(**self.log_fields, **make_log_fields(work, self.node.stage)),
            notify_of_calls(self.calls.add),
        ):
            if history != NO_HISTORY:
                LOG.warning("retrying the shard after %d deaths and %d lost machines", history.deaths, history.losses)
            if reason := history.explain_giving_up(self.settings.max_attempts):
                outcomes = {cell.path: Outcome(state="failed", message=reason) for cell in cells}
            else:
                try:
                    outcomes = self._compute_cells(work, cells, history, spent)
                except RunStopping:
                    return None
            return finish_shard(self.node, work, outcomes, spent)

    def _take_report(self, finished: FinishedShard | None = None) -> WorkerReport:
        """Return a report of everything that has not been reported yet."""
        return WorkerReport(self.calls.take_unreported_calls(), self.lines.take_unsent_lines(), finished)

    def _abandon_shard(self, work: Work) -> Mapping[str, Outcome]:
        """Abandon a shard because the run is stopping; return placeholder outcomes, which the driver ignores."""
        STOP_REQUESTED.set()
        ray.get(self.progress.note_abandoned.remote(self.node.name, name_shard(work)))
        return {
            cell.metric: Outcome(state="failed", message=STOPPED_ERROR.message)
            for cell in work.select_cells(self.node.name)
        }

    def _send_report(self, report: WorkerReport) -> None:
        def stop_if_requested(answer: Future[bool]) -> None:
            if answer.exception() is None and answer.result():
                STOP_REQUESTED.set()

        self.progress.report.remote(self.node.name, report).future().add_done_callback(stop_if_requested)

    def _compute_cells(
        self, work: Work, cells: Sequence[Cell], history: ShardHistory, spent: ModelTime
    ) -> dict[str, Outcome]:
        """Return the outcome of each cell, by path; if the device is lost, end this process, which Ray restarts."""

        def compute(cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
            return self._compute_tables(work, cells, history, spent)

        committed: dict[str, Outcome] = {}
        if self.settings.repeated or history != NO_HISTORY:
            # an earlier process may have saved drafts, or committed cells without reporting them
            cells = [replace(cell, earlier=(*list_draft_paths(cell), *cell.earlier)) for cell in cells]
            for cell in cells:
                with suppress(PlumblineError):  # if the store cannot be reached, compute the cell again
                    if not cell.renew and self.store.exists(cell.path):
                        committed[cell.path] = self.store.read_cell(cell.path).to_outcome()
        try:
            return compute_cells(work, cells, compute, self.settings.contexts[work.benchmark], committed)
        except Exception as error:
            if not is_device_lost(error):
                raise
            os._exit(1)  # no later call of this process can use the device

    def _compute_tables(
        self, work: Work, cells: Sequence[Cell], history: ShardHistory, spent: ModelTime
    ) -> Mapping[str, pa.Table]:
        """Compute the tables of a shard, one window of rows at a time.

        If the shard has killed its worker twice, each window is a single row, which is reported before it is computed.
        """
        arrived, name, stage = time.monotonic(), name_shard(work), self.stages[work.benchmark]
        computed = ComputedRows(cells, self.settings.contexts[work.benchmark])
        by_row = history.splits_rows and stage.can_split_rows
        with self.deadline():
            windows = stage.read_windows(work, cells, 1 if by_row else WINDOW_ROWS)
        for row, window in enumerate(windows):
            computed.save_if_due()
            if by_row and row in history.deadly_rows:
                computed.add(stage.compute(stage.refuse(window, DEADLY_ROW_ERROR)))
                continue
            if by_row:
                ray.get(self.progress.note_row.remote(self.node.name, name, row))
            computed.add(self._compute_window(stage, window, spent, arrived))
        if by_row:
            ray.get(self.progress.note_row.remote(self.node.name, name, None))
        return computed.collect_tables()

    def _compute_window(
        self, stage: NodeStage, window: Inputs, spent: ModelTime, arrived: float
    ) -> Mapping[str, pa.Table]:
        """Compute the tables for one window of rows; `arrived` is the time at which this process received the shard."""
        with self.deadline():
            prepared = stage.prepare(window)
        if stage.side_by_side:
            with self.deadline(), spent.measure():
                return stage.compute(prepared)
        with self.computing, self.deadline(), spent.measure(waiting_since=max(arrived, self.idle_since)):
            try:
                return stage.compute(prepared)
            finally:
                self.idle_since = time.monotonic()


class SharedOrExclusiveLock:
    """Lock that allows either up to `n_shared` threads or one exclusive thread at a time."""

    def __init__(self, n_shared: int) -> None:
        self.n_shared = n_shared
        self.free = threading.Semaphore(n_shared)
        self.claiming = threading.Lock()
        """Lock held while a thread claims access, so that shared claims cannot overtake a waiting exclusive claim."""

    @contextmanager
    def hold_shared(self) -> Iterator[None]:
        with self.claiming:
            self.free.acquire()
        try:
            yield
        finally:
            self.free.release()

    @contextmanager
    def hold_exclusively(self) -> Iterator[None]:
        with self.claiming:
            for _ in range(self.n_shared):
                self.free.acquire()
        try:
            yield
        finally:
            self.free.release(self.n_shared)
