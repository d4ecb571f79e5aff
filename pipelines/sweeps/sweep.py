"""A sweep: benchmark prompts x generators x metrics, from sources to a run's tables."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from plumbline.operators.base.usage import Usage
from plumbline.operators.results.summary import best_first
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, Ending, end
from plumbline.pipelines.base.logs import add_log_fields
from plumbline.pipelines.plans.costs import Cost, node_costs
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.events import PhaseStarted, Totals, Watch, to_all
from plumbline.pipelines.sources.origins import name_some
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.store.reused_rows import Retried, count_retried
from plumbline.pipelines.store.runs import NameRun, name_by_time
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
    UnchangedRun,
    find_unchanged_by_listing,
    find_unchanged_by_plan,
    is_complete,
    note_unchanged,
)
from plumbline.pipelines.sweeps.writing import write_run

LOG = logging.getLogger(__name__)


class FinishedSweep(NamedTuple):
    """A run that is in the store."""

    run_id: str
    folder: str
    """Address of its tables."""
    results: Results
    lower_is_better: frozenset[str]
    """Metrics whose lower scores are better."""
    computed: int
    renewed: int
    """Number of these cells that had been committed and could not be used."""
    ending: Ending
    """Exit code with its reason: 0 complete, 2 within the failure budget, 1 over it."""
    usage: Mapping[str, Usage]
    """Tokens and calls of this run by node, if they are counted."""
    costs: Mapping[str, Cost]
    """Cost of the calls and the GPUs by node, if these have prices."""
    unchanged: bool
    """True if it is an earlier run with the same inputs, so that nothing was written."""
    copied: int = 0
    """Number of further cells that were written without asking a model: all rows or inputs are from earlier cells."""
    retried: Retried | None = None
    """Failed rows that were tried again; None without `retry_failed`."""

    @property
    def exit_code(self) -> int:
        return self.ending.code


def run_sweep(
    planned: PlannedSweep,
    watch: Watch,
    *,
    name: NameRun = name_by_time,
    assert_lease: Callable[[], None] = lambda: None,
) -> FinishedSweep:
    """Compute the missing cells and write the run; Ray is only imported if a cell is missing.

    If the newest run is undamaged and has the same inputs, return it and write nothing. A new run becomes the newest
    only when it is named (`name_newest`), together with its report. `assert_lease` is called before anything of the run
    is published; it raises if that is no longer allowed.
    """
    unchanged = find_unchanged_by_plan(planned)
    if unchanged is not None:
        note_unchanged(planned, unchanged.run_id)
        return _finish_unchanged(planned, unchanged)
    began = datetime.now(UTC)
    run_id = name(planned.store, began)
    with add_log_fields(run=run_id), registered_sweep(planned, watch, run=run_id) as (planned, watch):
        return _run(planned, watch, run_id, began, assert_lease)


def unchanged_sweep(inputs: SweepInputs) -> FinishedSweep | None:
    """Return the newest run if a listing of the sources shows no change: then there is nothing to plan."""
    unchanged = find_unchanged_by_listing(inputs)
    return None if unchanged is None else _finish_unchanged(inputs, unchanged)


def _finish_unchanged(sweep: SweepInputs | PlannedSweep, unchanged: UnchangedRun) -> FinishedSweep:
    run_id, results, ending = unchanged
    LOG.info("nothing changed since run %s", run_id)
    folder, lower_is_better = f"{sweep.store.place.url}/runs/{run_id}", sweep.config.lower_is_better
    return FinishedSweep(
        run_id,
        folder,
        results,
        lower_is_better,
        computed=0,
        renewed=0,
        ending=ending,
        usage={},
        costs={},
        unchanged=True,
    )


def _run(
    planned: PlannedSweep,
    watch: Watch,
    run_id: str,
    began: datetime,
    assert_lease: Callable[[], None],
) -> FinishedSweep:
    config = planned.config
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
            benchmark=config.benchmark,
            cluster=config.cluster,
        )
        ordered = best_first(results.summary, config.lower_is_better)
        return Inspection(replace(results, summary=ordered), results.broken)

    planned, outcomes, results = compute_whole(planned, to_all(totals.add, watch), gather)
    planned, outcomes = with_rounds(with_times(planned, totals), outcomes)
    if lost := planned.sources.uncounted:  # this exceeds every failure budget
        ending = Ending(OVER_BUDGET, f"{name_some(lost)} lost rows that nobody can count")
    else:
        ending = end(results.n_null, results.rows, config.max_failed)
    write_run(planned, run_id, results, outcomes, began=began, ending=ending, assert_lease=assert_lease)
    if is_complete(planned, results, outcomes.values()):
        note_unchanged(planned, run_id)
    usage = model_usage(planned.plan, outcomes)
    copied = _count_copied(planned.plan, outcomes)
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
        costs=node_costs(planned.plan, usage, config.cluster, planned.held_seconds),
        unchanged=False,
        retried=count_retried(planned.plan.failed, outcomes) if config.retry_failed else None,
    )


def _count_copied(plan: Plan, outcomes: Mapping[str, Outcome]) -> int:
    """Count the cells whose rows were all in earlier cells, and the cells that only read such cells."""
    copied = set[str]()
    for cell in plan.cells:  # inputs come before the cells that read them
        outcome = outcomes.get(cell.path)
        if outcome is None or outcome.state == "failed":
            continue
        read = [each.path for cells in plan.upstream(cell).values() for each in cells if each.path in outcomes]
        if 0 < outcome.rows == outcome.kept or (read and copied.issuperset(read)):
            copied.add(cell.path)
    return len(copied)
