"""Runs a sweep (benchmark prompts x generators x metrics), from its sources to the tables of a run."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from plumbline.operators.results.summary import sort_best_first
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, Ending, make_ending
from plumbline.pipelines.base.logs import add_log_fields
from plumbline.pipelines.plans.costs import sum_costs
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.events import PhaseStarted, ProgressTotals, Watch, combine_displays
from plumbline.pipelines.sources.origins import format_first_names
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.store.reused_rows import count_retried_rows
from plumbline.pipelines.store.runs import NameRun, name_by_time
from plumbline.pipelines.sweeps.computing import (
    Inspection,
    add_earlier_rounds,
    add_node_times,
    compute_and_repair,
    register_sweep,
    sum_usage,
)
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import FinishedSweep, Results, gather_results
from plumbline.pipelines.sweeps.unchanged_run import find_unchanged_run_by_plan, is_complete, write_inputs_digest
from plumbline.pipelines.sweeps.writing import write_run

LOG = logging.getLogger(__name__)


def run_sweep(
    planned: PlannedSweep,
    watch: Watch,
    *,
    name: NameRun = name_by_time,
    assert_lease: Callable[[], None] = lambda: None,
) -> FinishedSweep:
    """Compute the missing cells and write the run. Ray is only imported if a cell is missing.

    If the newest run has the same inputs and is undamaged, return it and write nothing. A new run does not become the
    newest until it has a report and `make_run_newest` is called. `assert_lease` is called before any part of the
    run is published; it raises LeaseLost if another process took the lease.
    """
    unchanged = find_unchanged_run_by_plan(planned)
    if unchanged is not None:
        write_inputs_digest(planned, unchanged.run_id)
        return unchanged
    began = datetime.now(UTC)
    run_id = name(planned.store, began)
    with add_log_fields(run=run_id), register_sweep(planned, watch, run=run_id) as (planned, watch):
        return _compute_and_write_run(planned, watch, run_id, began, assert_lease)


def _compute_and_write_run(
    planned: PlannedSweep,
    watch: Watch,
    run_id: str,
    began: datetime,
    assert_lease: Callable[[], None],
) -> FinishedSweep:
    config = planned.config
    LOG.info("%d of %d cells to compute", len(planned.plan.missing), len(planned.plan.cells))
    totals = ProgressTotals()

    def gather(repaired: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[Results]:
        watch(PhaseStarted("writing the run's tables"))
        results = gather_results(
            repaired.plan,
            repaired.sources,
            {**planned.outcomes, **outcomes},
            run_id=run_id,
            store=repaired.store,
            benchmark=config.benchmark,
            cluster=config.cluster,
        )
        ordered = sort_best_first(results.summary, config.lower_is_better)
        return Inspection(replace(results, summary=ordered), results.broken)

    planned, outcomes, results = compute_and_repair(planned, combine_displays(totals.add, watch), gather)
    planned, outcomes = add_earlier_rounds(add_node_times(planned, totals), outcomes)
    if lost := planned.sources.damaged_files:  # this exceeds every failure budget
        ending = Ending(OVER_BUDGET, f"{format_first_names(lost)} lost an unknown number of rows")
    else:
        ending = make_ending(results.n_null, results.rows, config.max_failed)
    write_run(planned, run_id, results, outcomes, began=began, ending=ending, assert_lease=assert_lease)
    if is_complete(planned, results, outcomes.values()):
        write_inputs_digest(planned, run_id)
    usage = sum_usage(planned.plan, outcomes)
    copied = _count_copied_cells(planned.plan, outcomes)
    LOG.info("written: %d rows, coverage %.4f, %s", results.rows, results.coverage, ending)
    return FinishedSweep(
        run_id=run_id,
        folder=f"{planned.store.place.url}/runs/{run_id}",
        results=results,
        lower_is_better=config.lower_is_better,
        computed=sum(outcome.state != "failed" for outcome in outcomes.values()) - copied,
        copied=copied,
        renewed=len(planned.plan.renewed),
        ending=ending,
        usage=usage,
        costs=sum_costs(planned.plan, usage, config.cluster, planned.occupied_seconds),
        unchanged=False,
        retried=count_retried_rows(planned.plan.failed, outcomes) if config.retry_failed else None,
    )


def _count_copied_cells(plan: Plan, outcomes: Mapping[str, Outcome]) -> int:
    """Count the cells whose rows, or whose inputs, were all copied from earlier cells."""
    copied = set[str]()
    for cell in plan.cells:  # inputs come before the cells that read them
        outcome = outcomes.get(cell.path)
        if outcome is None or outcome.state == "failed":
            continue
        read = [
            each.path for cells in plan.list_upstream_cells(cell).values() for each in cells if each.path in outcomes
        ]
        if 0 < outcome.rows == outcome.kept or (read and copied.issuperset(read)):
            copied.add(cell.path)
    return len(copied)
