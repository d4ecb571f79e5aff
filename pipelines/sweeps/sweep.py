"""A sweep: benchmark prompts x generators x metrics, from sources to a run's tables."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from plumbline.operators.base.usage import Usage
from plumbline.operators.results.summary import best_first
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, Ending, end
from plumbline.pipelines.base.logs import about
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.cells.reused_rows import Retried, count_retried
from plumbline.pipelines.cells.runs import NameRun, by_time
from plumbline.pipelines.plans.costs import Cost, costs_of
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.events import PhaseStarted, Totals, Watch, to_all
from plumbline.pipelines.sources.origins import name_some
from plumbline.pipelines.sweeps.computing import (
    Inspection,
    compute_whole,
    model_usage,
    registered_sweep,
    with_rounds,
    with_times,
)
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs
from plumbline.pipelines.sweeps.results import Results, gather_results
from plumbline.pipelines.sweeps.unchanged_run import (
    StandingRun,
    find_standing_run,
    find_unchanged_run,
    is_settled,
    note_unchanged,
)
from plumbline.pipelines.sweeps.writing import count_cells, write_run

LOG = logging.getLogger(__name__)


class FinishedSweep(NamedTuple):
    """A run that is in the store."""

    run_id: str
    folder: str
    """The address of its tables."""
    results: Results
    falling: frozenset[str]
    """The metrics by which a lower score is better."""
    computed: int
    """Cells that this run computed."""
    renewed: int
    """Those of them that were committed before and could not be used."""
    ending: Ending
    """0 complete, 2 within the failure budget, 1 over it."""
    usage: Mapping[str, Usage]
    """By node, the tokens and calls of this run, where they are counted."""
    costs: Mapping[str, Cost]
    """By node, what they and its GPUs cost, where these have prices."""
    unchanged: bool
    """Whether it is an earlier run with the same inputs, so that nothing was written."""
    copied: int = 0
    """Further cells that this run wrote, whose rows or whose inputs all come from earlier cells: no model was asked."""
    retried: Retried | None = None
    """Where `retry_failed` is set, the failed rows that were tried again."""

    @property
    def exit_code(self) -> int:
        return self.ending.code


def run_sweep(
    planned: PlannedSweep,
    watch: Watch,
    *,
    name: NameRun = by_time,
    assert_lease: Callable[[], None] = lambda: None,
) -> FinishedSweep:
    """Computes what is missing and writes the run; with nothing missing, Ray is not even imported.

    Where the newest run has the same inputs and is whole, it is the result, and no other run is written. The run is
    the newest once it is named (`name_newest`), together with its report. `assert_lease` is called before anything of
    the run is published, and raises where that is no longer allowed.
    """
    standing = find_standing_run(planned)
    if standing is not None:
        note_unchanged(planned, standing.run_id)
        return _unchanged(planned, standing)
    began = datetime.now(UTC)
    run_id = name(planned.store, began)
    with about(run=run_id), registered_sweep(planned, watch, run=run_id) as (planned, watch):
        return _run(planned, watch, run_id, began, assert_lease)


def unchanged_sweep(inputs: SweepInputs) -> FinishedSweep | None:
    """The newest run, where a listing of the sources tells that it still holds: there is nothing to plan then."""
    standing = find_unchanged_run(inputs)
    return None if standing is None else _unchanged(inputs, standing)


def _unchanged(sweep: SweepInputs | PlannedSweep, standing: StandingRun) -> FinishedSweep:
    run_id, results, ending = standing
    LOG.info("nothing changed since run %s", run_id)
    return FinishedSweep(run_id, _folder(sweep, run_id), results, sweep.falling, 0, 0, ending, {}, {}, True)


def _run(
    planned: PlannedSweep,
    watch: Watch,
    run_id: str,
    began: datetime,
    assert_lease: Callable[[], None],
) -> FinishedSweep:
    LOG.info("%d of %d cells to compute", len(planned.plan.missing), len(planned.plan.cells))
    totals = Totals()

    def gather(now: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[Results]:
        watch(PhaseStarted("writing the run's tables"))
        results = gather_results(
            now.plan,
            now.sources,
            {**planned.outcomes, **outcomes},
            run_id=run_id,
            store=now.store,
            benchmark=now.config.benchmark,
            cluster=now.config.cluster,
        )
        ordered = best_first(results.summary, now.falling)
        return Inspection(replace(results, summary=ordered), results.broken)

    planned, outcomes, results = compute_whole(planned, to_all(totals.add, watch), gather)
    planned = with_times(planned, totals)
    planned, outcomes = with_rounds(planned, outcomes)
    ending = _end(planned, results)
    write_run(planned, run_id, results, outcomes, began=began, ending=ending, assert_lease=assert_lease)
    if is_settled(planned, results, outcomes.values()):
        note_unchanged(planned, run_id)
    usage = model_usage(planned.plan, outcomes)
    copied = _count_copied(planned.plan, outcomes)
    LOG.info("written: %d rows, coverage %.4f, %s", results.rows, results.coverage, ending)
    return FinishedSweep(
        run_id=run_id,
        folder=_folder(planned, run_id),
        results=results,
        falling=planned.falling,
        computed=count_cells(planned.plan, results, outcomes)["cells_computed"] - copied,
        copied=copied,
        renewed=len(planned.plan.renewed),
        ending=ending,
        usage=usage,
        costs=costs_of(planned.plan, usage, planned.config.cluster, planned.held_seconds),
        unchanged=False,
        retried=count_retried(planned.plan.failed, outcomes) if planned.config.retry_failed else None,
    )


def _end(planned: PlannedSweep, results: Results) -> Ending:
    """Return how the sweep ends: files that lost rows which nobody can count are above every budget."""
    if lost := planned.sources.uncounted:
        return Ending(OVER_BUDGET, f"{name_some(lost)} lost rows that nobody can count")
    return end(results.n_null, results.rows, planned.config.max_failed)


def _count_copied(plan: Plan, outcomes: Mapping[str, Outcome]) -> int:
    """Return the number of cells whose rows were all in earlier cells, and of those that only read such cells."""
    copied = set[str]()
    for cell in plan.cells:  # what a cell reads comes before it
        outcome = outcomes.get(cell.path)
        if outcome is None or outcome.state == "failed":
            continue
        read = [one.path for cells in plan.read_by(cell).values() for one in cells if one.path in outcomes]
        if 0 < outcome.rows == outcome.kept or (read and copied.issuperset(read)):
            copied.add(cell.path)
    return len(copied)


def _folder(sweep: SweepInputs | PlannedSweep, run_id: str) -> str:
    return f"{sweep.store.place.url}/runs/{run_id}"
