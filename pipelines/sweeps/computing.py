"""The cells of a planned sweep computed, again where some of them are damaged."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from plumbline.operators.base.usage import Usage
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, Shard
from plumbline.pipelines.maintenance.working_sweeps import present, progress_of, wait_for_deletions
from plumbline.pipelines.plans.costs import try_services
from plumbline.pipelines.plans.plan import Plan, make_plan, with_missing
from plumbline.pipelines.running.events import Totals, Watch, expected_cells, to_all
from plumbline.pipelines.running.executor import Executor
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.sweeps.planning import NodeTimes, PlannedSweep, uris_of

T = TypeVar("T")

MAX_ROUNDS = 6
"""Rounds of computing and inspecting. The chain from questions to scores is shorter; cells that break again fail."""


@contextmanager
def registered_sweep(planned: PlannedSweep, watch: Watch, **content: Any) -> Iterator[tuple[PlannedSweep, Watch]]:
    """As `registered_sweeps`, of one sweep."""
    with registered_sweeps([planned], watch, **content) as ((working,), both):
        yield working, both


@contextmanager
def registered_sweeps(
    sweeps: Sequence[PlannedSweep], watch: Watch, **content: Any
) -> Iterator[tuple[Sequence[PlannedSweep], Watch]]:
    """Registers in the store which cells the sweeps use and how far they are, for jobs.gc and for those who follow.

    Yields the sweeps, planned again where cells may have been deleted since they were planned, and what watches them
    both ways. No display can end the run.
    """
    store, nodes = sweeps[0].store, workload_of(sweeps).nodes
    recipes = [recipe for sweep in sweeps for recipe in (*sweep.plan.prompts.recipes, *sweep.plan.images.recipes)]
    uses = sorted({recipe.folder for recipe in recipes})
    content |= {"benchmark": ", ".join(sweep.config.benchmark.name for sweep in sweeps), "uses": uses}
    at_first, totals = Totals(expected_cells(nodes)), Totals()

    def progress() -> dict[str, Any]:
        return progress_of(nodes, totals.nodes or at_first.nodes)

    with present(store, progress, **content):
        deleted = wait_for_deletions(store)
        yield [_planned_since(sweep, deleted) for sweep in sweeps], to_all(totals.add, watch)


def _planned_since(planned: PlannedSweep, deletions: int) -> PlannedSweep:
    """The sweep, planned again where cells may have been deleted since it was planned."""
    if deletions == planned.deletions:
        return planned
    renew = planned.plan.renewed
    plan = make_plan(planned.config, planned.sources, planned.store, wanted=planned.wanted, renew=renew)
    return replace(planned, plan=plan)


class Inspection(NamedTuple, Generic[T]):
    """What was read from the cells of a sweep."""

    result: T
    broken: Set[str]
    """The paths of cells that cannot be used."""


def compute_whole(
    planned: PlannedSweep,
    watch: Watch,
    inspect: Callable[[PlannedSweep, Mapping[str, Outcome]], Inspection[T]],
) -> tuple[PlannedSweep, dict[str, Outcome], T]:
    """Computes what is missing, and once more the cells that `inspect` finds damaged or based on replaced ones.

    Returns the sweep with every cell that it had to compute, their outcomes, and the result of `inspect`.
    """
    now, renewed = planned, planned.plan.renewed
    outcomes: dict[str, Outcome] = {}
    for _ in range(MAX_ROUNDS):
        outcomes |= compute_missing(now, watch)
        inspection = inspect(now, outcomes)
        if not inspection.broken:
            break
        renewed |= inspection.broken
        tried = {**planned.outcomes, **outcomes}
        left = {path for path in renewed if path not in tried or tried[path].state != "committed"}
        plan = make_plan(now.config, now.sources, now.store, wanted=now.wanted, renew=left | inspection.broken)
        now = replace(now, plan=plan)
    again = frozenset(cell for cell in planned.plan.cells if cell.path in renewed)
    plan = replace(planned.plan, missing=planned.plan.missing | again, renewed=renewed)
    return replace(planned, plan=plan), outcomes, inspection.result


def compute_missing(planned: PlannedSweep, watch: Watch) -> dict[str, Outcome]:
    """The outcomes of the plan's missing cells; with nothing missing, nothing of the executor is imported."""
    return compute_workload(workload_of([planned]), planned.executor, watch)


def compute_workload(workload: Workload, executor: Executor, watch: Watch) -> dict[str, Outcome]:
    """As `compute_missing`, of one sweep or several."""
    nodes = [item for item in workload.nodes if item.missing]
    if not nodes:
        return {}
    try_services(item.node for item in nodes)
    for event in expected_cells(nodes):
        watch(event)
    return executor.compute(workload, watch)


def workload_of(sweeps: Sequence[PlannedSweep]) -> Workload:
    """What sweeps have to compute, together."""
    named = {planned.config.benchmark.name: planned for planned in sweeps}
    return Workload(
        {name: planned.plan for name, planned in named.items()},
        {name: stage_context(planned) for name, planned in named.items()},
    )


def stage_context(planned: PlannedSweep) -> StageContext:
    """What the stages of a sweep share."""
    config = planned.config
    return StageContext(
        store=planned.store,
        metrics=tuple(config.metrics),
        limits=config.limits,
        clips=config.clips,
        uris=uris_of(config),
        prompt_shards=tuple(planned.sources.prompt_shards),
        packed=planned.sources.packed,
    )


def with_rounds(planned: PlannedSweep, outcomes: dict[str, Outcome]) -> tuple[PlannedSweep, dict[str, Outcome]]:
    """The sweep with everything that was computed for it, round by round."""
    if not planned.outcomes:
        return planned, outcomes
    before = {cell for cell in planned.plan.cells if cell.path in planned.outcomes}
    plan = with_missing(planned.plan, planned.plan.missing | before, planned.sources)
    return replace(planned, plan=plan), {**planned.outcomes, **outcomes}


def with_times(planned: PlannedSweep, totals: Totals) -> PlannedSweep:
    """The sweep with the times that its nodes took, added to those of earlier rounds."""
    times = dict(planned.times)
    for node, state in totals.nodes.items():
        before = times.get(node, NodeTimes())
        took = NodeTimes(*(round(getattr(state, name) + getattr(before, name), 2) for name in NodeTimes._fields))
        times |= {node: took} if took.seconds else {}
    return replace(planned, times=times)


def model_usage(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, Usage]:
    """The tokens and calls of this run, by node; cells computed together on one shard are counted once."""
    counted: dict[tuple[str, PlannedCell | Shard], Usage] = {}
    for cell in plan.cells:
        usage = outcomes[cell.path].usage if cell.path in outcomes else None
        if usage is not None:
            counted[cell.recipe.node, _counted_as(cell)] = usage
    totals: dict[str, Usage] = {}
    for (node, _), usage in counted.items():
        totals[node] = totals.get(node, Usage()).plus(usage)
    return {node: usage for node, usage in totals.items() if any(usage)}


def _counted_as(cell: PlannedCell) -> PlannedCell | Shard:
    """The shard where all metrics' cells of it are measured together, as stages over images do."""
    return cell if STAGES[cell.recipe.stage].over == "prompts" else cell.shard
