"""Computes a plan's missing cells in this process, one stage after another, without Ray."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa

from plumbline.operators.base.batches import notify_of_calls
from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.stopping import STOP_REQUESTED
from plumbline.operators.stages.stage import RowKind
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.base.logs import add_log_fields
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running.errors import RunnerError, format_error
from plumbline.pipelines.running.events import CallsAnswered, PhaseStarted, ShardStarted, Watch
from plumbline.pipelines.running.outcomes import (
    CallReporter,
    ComputedRows,
    ModelTime,
    compute_cells,
    find_failed_input,
    finish_shard,
    make_log_fields,
)
from plumbline.pipelines.running.process import RunStopping, defer_stop_signals, set_torch_threads
from plumbline.pipelines.running.stages import NodeStage, make_stages
from plumbline.pipelines.running.workload import Workload, fits_this_process
from plumbline.pipelines.store.cells import Cell, Outcome, Work

MAX_PROMPTS_IN_DRIVER = 5_000
"""Maximum number of prompts for which the driver writes the questions itself. This takes a few seconds, about as long
as starting a worker.
"""


def compute_in_process(workload: Workload, cluster: ClusterConfig, watch: Watch) -> dict[str, Outcome]:
    """Compute the missing cells and return their outcomes by path, loading the models of one stage at a time.

    The run ends if this process dies: unlike on Ray, no row is skipped for that reason, and the pools' deadlines do not
    apply. After Ctrl-C or SIGTERM, the model finishes its current batch and the complete rows are saved. Raises
    RunnerError if a stage cannot start or loses its device.
    """
    outcomes: dict[str, Outcome] = {}
    shards = [work for kind in get_args(RowKind) for work in workload.iterate_shards_with_work(kind)]
    for node in (item.node for item in workload.nodes if item.missing):
        _compute_node(node, shards, workload, cluster.find_pool(node.name), watch, outcomes)
    return outcomes


def compute_quick_cells(workload: Workload, cluster: ClusterConfig, watch: Watch) -> dict[str, Outcome]:
    """Compute the cells that take less time here than a worker takes to start; return their outcomes by path.

    These cells cover few prompts. They need no model or, with `executor: auto`, only a few model calls. All other
    cells, and the cells that read them, are left to workers.
    """
    outcomes: dict[str, Outcome] = {}
    shards = list(workload.iterate_shards_with_work("prompts"))
    waiting = {cell.path for work in shards for cell in work.cells}
    nodes = [item for item in workload.nodes if item.missing and STAGES[item.node.stage].row_kind == "prompts"]
    few_calls = cluster.executor == "auto" and fits_this_process(nodes, cluster)
    for node in (item.node for item in nodes if few_calls or not item.node.models):
        own = [(work, cell) for work in shards for cell in work.select_cells(node.name)]
        rows = sum(work.shard.rows for work in {work.shard: work for work, _ in own}.values())
        if own and rows <= MAX_PROMPTS_IN_DRIVER and not any(waiting & {*cell.upstream} for _, cell in own):
            _compute_node(node, shards, workload, cluster.find_pool(node.name), watch, outcomes)
            waiting -= outcomes.keys()
    return outcomes


def _compute_node(
    node: Node,
    shards: Sequence[Work],
    workload: Workload,
    pool: PoolConfig,
    watch: Watch,
    outcomes: dict[str, Outcome],
) -> None:
    """Compute the cells of a node, add their outcomes to `outcomes`, and free the node's models."""
    if node.models:
        watch(PhaseStarted(f"loading the models of {node.name}"))
    with _convert_to_runner_error(node):
        set_torch_threads(pool.threads if node.model is not None else None)
        cores = count_cores()  # all of them, because no other stage computes now
        stages = make_stages(node, workload.contexts, decoders=pool.decoders or cores)
    calls = CallReporter(lambda made: watch(CallsAnswered(node.name, made)))
    with defer_stop_signals(), ThreadPoolExecutor(1) as reader:
        for work, windows in _read_ahead(node, stages, shards, outcomes, reader):
            watch(ShardStarted(node.name, benchmark=work.benchmark))
            cells, spent = work.select_cells(node.name), ModelTime()
            with _add_log_fields(node, work):
                with _convert_to_runner_error(node), notify_of_calls(calls.add):
                    computed = _compute_shard(stages[work.benchmark], work, cells, windows, spent)
                done = finish_shard(node, work, computed, spent)
            calls.send()
            outcomes |= computed
            watch(done.to_event(node.name))
            if STOP_REQUESTED.is_set():
                raise RunStopping


def _add_log_fields(node: Node, work: Work) -> AbstractContextManager[None]:
    return add_log_fields(stage=node.stage, node=node.name, **make_log_fields(work, node.stage))


class Prefetcher:
    """Iterator that prefetches the next item in a thread."""

    def __init__(self, items: Iterator[Any], reader: ThreadPoolExecutor) -> None:
        self._items, self._reader = items, reader
        self._next = self._start_next_item()

    def _start_next_item(self) -> Future[Any]:
        return self._reader.submit(copy_context().run, lambda: next(self._items, None))

    def __iter__(self) -> Iterator[Any]:
        while (item := self._next.result()) is not None:
            self._next = self._start_next_item()
            yield item


def _read_ahead(
    node: Node,
    stages: Mapping[str, NodeStage],
    shards: Sequence[Work],
    outcomes: Mapping[str, Outcome],
    reader: ThreadPoolExecutor,
) -> Iterator[tuple[Work, Prefetcher]]:
    """Yield each of the node's shards with its rows, which are read and decoded while earlier shards are computed."""

    def prepare(work: Work, cells: Sequence[Cell]) -> Iterator[Any]:
        if STOP_REQUESTED.is_set():
            raise RunStopping
        stage = stages[work.benchmark]
        yield from map(stage.prepare, stage.read_windows(work, cells) if cells else ())

    def begin(work: Work) -> Prefetcher:
        able = [cell for cell in work.select_cells(node.name) if find_failed_input(cell, outcomes) is None]
        with _add_log_fields(node, work):
            return Prefetcher(prepare(work, able), reader)

    works = [replace(work, outcomes=outcomes) for work in shards if work.select_cells(node.name)]
    ahead = [begin(work) for work in works[:1]]
    for number, work in enumerate(works):
        ahead += [begin(following) for following in works[number + 1 : number + 2]]
        yield work, ahead.pop(0)


def _compute_shard(
    stage: NodeStage, work: Work, cells: Sequence[Cell], windows: Prefetcher, spent: ModelTime
) -> dict[str, Outcome]:
    def compute(cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        rows, began = ComputedRows(cells, stage.context), time.monotonic()
        for window in windows:
            rows.save_if_due()
            with spent.measure(waiting_since=began):
                rows.add(stage.compute(window))
            began = time.monotonic()
        return rows.collect_tables()

    return compute_cells(work, cells, compute, stage.context, committed={})


@contextmanager
def _convert_to_runner_error(node: Node) -> Iterator[None]:
    """Convert any error raised within the context to a RunnerError that names the stage."""
    try:
        yield
    except Exception as error:
        raise RunnerError(f"stage {node.name}: {format_error(error)}") from error
