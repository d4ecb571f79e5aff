"""A plan's missing cells computed in this process, one stage after the other, without Ray and its workers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from plumbline.operators.batches import telling_calls
from plumbline.pipelines.base.cluster import ClusterConfig, PoolConfig
from plumbline.pipelines.base.logs import about
from plumbline.pipelines.cells.cells import Cell, Outcome, Work
from plumbline.pipelines.plans.plan import Node, Plan
from plumbline.pipelines.running.errors import RunnerError, one_line
from plumbline.pipelines.running.events import CallsAnswered, ShardStarted, Watch
from plumbline.pipelines.running.outcomes import CallReporter, compute_cells, finished_shard, log_cell, log_context
from plumbline.pipelines.running.process import set_torch_threads
from plumbline.pipelines.running.stages import NodeStage, StageContext


def compute_here(plan: Plan, context: StageContext, cluster: ClusterConfig, watch: Watch) -> dict[str, Outcome]:
    """The outcomes of the plan's missing cells, by path; one stage's models at a time are loaded.

    Whatever ends this process ends the run: no row is left out because of it, and pools' deadlines are not kept.
    Raises RunnerError for a stage that cannot start, or whose device is lost.
    """
    outcomes: dict[str, Outcome] = {}
    shards = [*plan.work(plan.prompts), *plan.work(plan.images)]
    for node in (item.node for item in plan.nodes if item.missing):
        _compute_node(node, shards, context, cluster.pool(node.name), watch, outcomes)
    return outcomes


def _compute_node(
    node: Node,
    shards: Sequence[Work],
    context: StageContext,
    pool: PoolConfig,
    watch: Watch,
    outcomes: dict[str, Outcome],
) -> None:
    """Adds the outcomes of a node's cells; its models are freed at the end."""
    with _raising(node):
        set_torch_threads(pool.threads if node.model is not None else None)
        stage = NodeStage(node, context, decoders=len(os.sched_getaffinity(0)))  # no other stage is at work
    calls = CallReporter(lambda made: watch(CallsAnswered(node.name, made)))
    for work in shards:
        cells = [cell for cell in work.cells if cell.node == node.name]
        if not cells:
            continue
        watch(ShardStarted(node.name))
        with about(stage=node.stage, node=node.name, **log_context(work.shard, node.stage)):
            with _raising(node), telling_calls(calls.note):
                computed = _compute_shard(stage, replace(work, outcomes=outcomes), cells)
            for cell in cells:
                log_cell(cell, computed[cell.path])
        calls.send()
        outcomes |= computed
        watch(finished_shard(node.name, work.shard.rows, computed.values()))


def _compute_shard(stage: NodeStage, work: Work, cells: Sequence[Cell]) -> dict[str, Outcome]:
    def tables(able: Sequence[Cell]) -> Mapping[str, pa.Table]:
        return stage.compute(stage.prepare(work, able))

    return compute_cells(work, cells, tables, stage.context)


@contextmanager
def _raising(node: Node) -> Iterator[None]:
    """Raises RunnerError for what ends the run, with the name of the stage."""
    try:
        yield
    except Exception as error:
        raise RunnerError(f"stage {node.name}: {one_line(error)}") from error
