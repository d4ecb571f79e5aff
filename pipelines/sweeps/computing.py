"""Computes the cells of a planned sweep, and recomputes cells that turn out to be damaged."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from plumbline.operators.base.usage import Usage
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.running_sweeps import describe_progress, send_heartbeats, wait_for_deletions
from plumbline.pipelines.plans.costs import try_services
from plumbline.pipelines.plans.plan import PAIR_STAGES, Plan, replace_missing_cells
from plumbline.pipelines.running.events import (
    NodeProgress,
    ProgressTotals,
    Watch,
    combine_displays,
    list_expected_cells,
)
from plumbline.pipelines.running.executor import Executor
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.sources.uris import open_benchmark_uris
from plumbline.pipelines.store.cells import Outcome, PlannedCell, Shard, is_draft
from plumbline.pipelines.store.store import BrokenCellError, Store
from plumbline.pipelines.sweeps.planning import PlannedSweep

T = TypeVar("T")

SUMMED_FIELDS = ("seconds", "worked", "waited", "calls")
"""Fields of NodeProgress that are summed over rounds."""

MAX_ROUNDS = 6
"""Maximum number of rounds of computing and inspecting; it exceeds the number of stages from questions to scores.

Cells that are still broken after these rounds fail.
"""


@contextmanager
def register_sweep(planned: PlannedSweep, watch: Watch, **content: Any) -> Iterator[tuple[PlannedSweep, Watch]]:
    """Register a single sweep in the same way as `register_sweeps`."""
    with register_sweeps([planned], watch, **content) as ((working,), both):
        yield working, both


@contextmanager
def register_sweeps(
    sweeps: Sequence[PlannedSweep], watch: Watch, **content: Any
) -> Iterator[tuple[Sequence[PlannedSweep], Watch]]:
    """Register the sweeps while the context lasts, so that jobs.gc keeps their cells and jobs.status shows them.

    Yields the sweeps, planned again if cells may have been deleted in the meantime, and a function that passes events
    to the store and to `watch`. An error in `watch` does not end the run.
    """
    store, nodes = sweeps[0].store, make_workload(sweeps).nodes
    recipes = [recipe for sweep in sweeps for recipe in chain.from_iterable(kind.recipes for kind in sweep.plan.kinds)]
    uses = sorted({recipe.folder for recipe in recipes})
    content |= {"benchmark": ", ".join(sweep.config.benchmark.name for sweep in sweeps), "uses": uses}
    planned_events, totals = ProgressTotals(list_expected_cells(nodes)), ProgressTotals()

    def make_progress() -> dict[str, Any]:
        return describe_progress(nodes, totals.nodes or planned_events.nodes)

    with send_heartbeats(store, make_progress, **content):
        deletions = wait_for_deletions(store)
        current = []
        for sweep in sweeps:
            if deletions != sweep.deletions:
                sweep = replace(sweep, plan=sweep.plan_again(renew=sweep.plan.renewed))
            current.append(sweep)
        yield current, combine_displays(totals.add, watch)


class Inspection(NamedTuple, Generic[T]):
    """A result that was computed from a sweep's cells or, if there is none, the cells that could not be used."""

    result: T
    broken: Set[str] = frozenset()
    """Paths of cells that cannot be used."""
    message: str = ""
    """Reason why the result is missing."""


class CellTables:
    """Tables of a plan's cells. Failed and untried cells have no table."""

    def __init__(self, plan: Plan, store: Store, outcomes: Mapping[str, Outcome]) -> None:
        self.plan, self.store, self.outcomes = plan, store, outcomes
        self._failed = {path for path, outcome in outcomes.items() if outcome.state == "failed"}

    def list_paths(self, cells: Sequence[PlannedCell]) -> list[str]:
        """Return the paths of the given cells that have a table."""
        return [cell.path for cell in cells if cell.path not in self._failed and cell not in self.plan.untried]

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a cell's rows; raise BrokenCellError if it is damaged."""
        return self.store.read(path, draft=is_draft(path, self.outcomes), columns=columns)

    def read_pairs(self, metric: str) -> Iterator[pa.Table]:
        """Yield the rows of each cell in which a metric compares pairs."""
        for recipe in (self.plan.recipes[metric][stage] for stage in PAIR_STAGES if stage in self.plan.recipes[metric]):
            yield from map(self.read, self.list_paths(self.plan.pairs.select(recipe, self.plan.pairs.of_shard)))

    def read_scores(self) -> RunScores:
        """Return the scores of all cells that have a table; a cell is read when its scores are used."""
        paths = [path for cells in self.plan.scores.values() for path in self.list_paths(cells)]
        return RunScores([partial(self.read, path) for path in paths])


def inspect_cells(
    planned: PlannedSweep, outcomes: Mapping[str, Outcome], read: Callable[[CellTables], T]
) -> Inspection[T | None]:
    """Return an Inspection with the result of `read` or, if cells cannot be used, with the paths of these cells."""
    if broken := {path for outcome in outcomes.values() for path in outcome.broken}:
        return Inspection(None, broken)
    try:
        return Inspection(read(CellTables(planned.plan, planned.store, outcomes)))
    except BrokenCellError as error:
        return Inspection(None, {error.path})


def compute_and_repair(
    planned: PlannedSweep,
    watch: Watch,
    inspect: Callable[[PlannedSweep, Mapping[str, Outcome]], Inspection[T]],
) -> tuple[PlannedSweep, dict[str, Outcome], T]:
    """Compute the missing cells, and recompute cells that `inspect` finds to be damaged or outdated.

    A cell is outdated if it was computed from a cell that has been replaced since then.

    Return the sweep (its plan now counts every cell that had to be computed as missing), the outcomes of these cells,
    and the result of the last call to `inspect`.
    """
    now, renewed = planned, planned.plan.renewed
    outcomes: dict[str, Outcome] = {}
    for _ in range(MAX_ROUNDS):
        outcomes |= compute_missing_cells(now, watch)
        inspection = inspect(now, outcomes)
        if not inspection.broken:
            break
        renewed |= inspection.broken
        tried = {**planned.outcomes, **outcomes}
        left = {path for path in renewed if path not in tried or tried[path].state != "committed"}
        now = replace(now, plan=now.plan_again(renew=left | inspection.broken))
    again = frozenset(cell for cell in planned.plan.cells if cell.path in renewed)
    plan = replace(planned.plan, missing=planned.plan.missing | again, renewed=renewed)
    return replace(planned, plan=plan), outcomes, inspection.result


def compute_missing_cells(planned: PlannedSweep, watch: Watch) -> dict[str, Outcome]:
    return compute_workload(make_workload([planned]), planned.executor, watch)


def compute_workload(workload: Workload, executor: Executor, watch: Watch) -> dict[str, Outcome]:
    """Compute the missing cells of one or more sweeps, and return their outcomes by path.

    If no cell is missing, no executor module is imported.
    """
    nodes = [item for item in workload.nodes if item.missing]
    if not nodes:
        return {}
    try_services(item.node for item in nodes)
    for event in list_expected_cells(nodes):
        watch(event)
    return executor.compute(workload, watch)


def make_workload(sweeps: Sequence[PlannedSweep]) -> Workload:
    """Combine the missing cells of several sweeps into one workload."""
    named = {planned.config.benchmark.name: planned for planned in sweeps}
    return Workload(
        {name: planned.plan for name, planned in named.items()},
        {name: make_stage_context(planned) for name, planned in named.items()},
    )


def make_stage_context(planned: PlannedSweep) -> StageContext:
    config = planned.config
    return StageContext(
        store=planned.store,
        metrics=tuple(config.metrics),
        limits=config.limits,
        clips=config.clips,
        uris=open_benchmark_uris(config.benchmark, config.storage, config.limits),
        prompt_shards=tuple(planned.sources.prompt_shards),
        packed=planned.sources.packed,
    )


def add_earlier_rounds(planned: PlannedSweep, outcomes: dict[str, Outcome]) -> tuple[PlannedSweep, dict[str, Outcome]]:
    """Add the cells that were computed in earlier rounds to the sweep and to the outcomes, and return both."""
    if not planned.outcomes:
        return planned, outcomes
    before = {cell for cell in planned.plan.cells if cell.path in planned.outcomes}
    plan = replace_missing_cells(planned.plan, planned.plan.missing | before, planned.sources)
    return replace(planned, plan=plan), {**planned.outcomes, **outcomes}


def add_node_times(planned: PlannedSweep, totals: ProgressTotals) -> PlannedSweep:
    """Return the sweep with the node times in `totals` added to the times of earlier rounds."""
    times = dict(planned.times)
    for node, progress in totals.nodes.items():
        before = times.get(node, NodeProgress())
        summed = {name: round(getattr(progress, name) + getattr(before, name), 2) for name in SUMMED_FIELDS}
        if summed["seconds"]:
            times[node] = NodeProgress(**summed)
    return replace(planned, times=times)


def sum_usage(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, Usage]:
    """Return the tokens and calls that were used in this run, by node.

    Image stages compute the cells of all metrics for a shard together and count the usage once for all these cells, so
    this usage is added only once.
    """
    counted: dict[tuple[str, PlannedCell | Shard], Usage] = {}
    for cell in plan.cells:
        usage = outcomes[cell.path].usage if cell.path in outcomes else None
        if usage is not None:
            together = cell if STAGES[cell.recipe.stage].row_kind == "prompts" else cell.shard
            counted[cell.recipe.node, together] = usage
    totals: dict[str, Usage] = {}
    for (node, _), usage in counted.items():
        totals[node] = totals.get(node, Usage()).plus(usage)
    return {node: usage for node, usage in totals.items() if any(usage)}
