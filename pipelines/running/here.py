"""A plan's missing cells computed in this process, one stage after the other, without Ray and its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from plumbline.operators.batches import telling_calls
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.logs import about
from plumbline.pipelines.cells.cells import Cell, Outcome, Work
from plumbline.pipelines.plans.plan import Node, Plan
from plumbline.pipelines.running.errors import RunnerError, one_line
from plumbline.pipelines.running.outcomes import CallNews, compute_cells, log_cell, log_context
from plumbline.pipelines.running.process import set_torch_threads
from plumbline.pipelines.running.progress import Tallies
from plumbline.pipelines.running.rounds import Report
from plumbline.pipelines.running.stages import NodeStage, StageContext


def compute_here(plan: Plan, context: StageContext, cluster: ClusterConfig, report: Report) -> dict[str, Outcome]:
    """What became of the plan's missing cells, by path; one model at a time is loaded.

    Whatever ends this process ends the run: no row is left out because of it, and pools' deadlines are not kept.
    Raises RunnerError for a stage that cannot start, or whose device is lost.
    """
    outcomes: dict[str, Outcome] = {}
    tallies = Tallies()
    shards = [*plan.work(plan.prompts), *plan.work(plan.images)]
    for node in (item.node for item in plan.nodes if item.missing):
        worker = _Worker(node, context, cluster, tallies, report)
        for work in shards:
            cells = [cell for cell in work.cells if cell.node == node.name]
            if cells:
                outcomes |= worker.compute(replace(work, outcomes=outcomes), cells)
    return outcomes


class _Worker:
    """A node's stage with its models loaded, which counts what it computes."""

    def __init__(
        self, node: Node, context: StageContext, cluster: ClusterConfig, tallies: Tallies, report: Report
    ) -> None:
        pool = cluster.pool(node.name)
        self.node, self.context, self.tallies, self.report = node, context, tallies, report
        self.calls = CallNews(self._called)
        tallies.begin(node.name)
        try:
            set_torch_threads(pool.threads if node.model is not None else None)
            self.stage = NodeStage(node, context, decoders=max(1, int(pool.num_cpus)))
        except Exception as error:
            raise RunnerError(f"stage {node.name}: {one_line(error)}") from error

    def compute(self, work: Work, cells: Sequence[Cell]) -> dict[str, Outcome]:
        """What became of a shard's cells of this node."""
        with about(stage=self.node.stage, node=self.node.name, **log_context(work.shard, self.node.stage)):
            with telling_calls(self.calls.note):
                outcomes = self._outcomes(work, cells)
            for cell in cells:
                log_cell(cell, outcomes[cell.path])
        self.calls.send()
        self.tallies.finish(self.node.name, work.shard.rows, [outcomes[cell.path] for cell in cells])
        self.report(self.tallies.snapshot())
        return outcomes

    def _outcomes(self, work: Work, cells: Sequence[Cell]) -> dict[str, Outcome]:
        def tables(able: Sequence[Cell]) -> Mapping[str, pa.Table]:
            return self.stage.compute(self.stage.prepare(work, able))

        try:
            return compute_cells(work, cells, tables, self.context)
        except Exception as error:
            raise RunnerError(f"stage {self.node.name}: {one_line(error)}") from error

    def _called(self, made: int) -> None:
        self.tallies.call(self.node.name, made)
        self.report(self.tallies.snapshot())
