"""An adaptive sweep: rounds of prompts in a fixed random order, until the generators are told apart.

Each round is a plan over all prompts so far. Its decisions depend on its cells alone, so a killed sweep decides the
same when it runs again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import pyarrow as pa

from plumbline.operators.judging.decided_pairs import SeenPrompts, look
from plumbline.operators.results.run_scores import RunScores
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.cells.store import BrokenCell, Store, StoreError
from plumbline.pipelines.maintenance.working_sweeps import deletions
from plumbline.pipelines.plans.plan import Plan, make_plan, with_missing
from plumbline.pipelines.running.events import Totals, Watch, to_all
from plumbline.pipelines.sweeps.computing import (
    Inspection,
    compute_whole,
    registered_sweep,
    with_rounds,
    with_times,
)
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.sweep import FinishedSweep, run_sweep


def run_adaptive(
    planned: PlannedSweep,
    display: Callable[[], AbstractContextManager[Watch]],
    tell: Callable[[SeenPrompts], None],
) -> tuple[FinishedSweep, PlannedSweep]:
    """Computes round after round until every pair is decided, and writes the run. `tell` is called after each round.

    Returns the run, and the sweep of the prompts that were enough.

    Raises ConfigError where the scores do not keep to `adaptive.range`.
    """
    rounds = planned.rounds
    assert rounds is not None, "the sweep was planned as an adaptive one"
    now, outcomes = planned, dict[str, Outcome]()
    for round in range(len(rounds.ends)):
        now = _up_to(now, round, outcomes)
        now, outcomes, seen = _round(now, round, display)
        tell(seen)
        if seen.enough:
            break
    now = replace(now, plan=with_missing(now.plan, frozenset(), now.sources), seen=seen, outcomes=outcomes)
    with display() as watch:
        return run_sweep(now, watch), now


def _up_to(planned: PlannedSweep, round: int, outcomes: Mapping[str, Outcome]) -> PlannedSweep:
    """The sweep up to this round, planned on the current store, without the cells that this run has tried."""
    assert planned.rounds is not None
    sources = planned.rounds.up_to(round)
    deleted = deletions(planned.store)  # before its cells are listed
    plan = make_plan(planned.config, sources, planned.store, wanted=planned.wanted)
    if outcomes:
        plan = with_missing(plan, {cell for cell in plan.missing if cell.path not in outcomes}, sources)
    return replace(planned, sources=sources, plan=plan, deletions=deleted, outcomes=outcomes)


def _round(
    now: PlannedSweep, round: int, display: Callable[[], AbstractContextManager[Watch]]
) -> tuple[PlannedSweep, dict[str, Outcome], SeenPrompts]:
    """Computes what is missing and decides. With nothing missing, the sweep is not registered."""

    def see(then: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[SeenPrompts | None]:
        return _see(then, round, {**now.outcomes, **outcomes})

    if not now.plan.missing:
        seen = see(now, {})
        if seen.result is not None:
            return now, dict(now.outcomes), seen.result
    totals = Totals()
    with display() as watch, registered_sweep(now, watch) as (working, watch):
        done, outcomes, result = compute_whole(working, to_all(totals.add, watch), see)
    done, outcomes = with_rounds(with_times(done, totals), outcomes)
    if result is None:
        raise StoreError("cells of this round break again and again; look at the disk, and run again")
    return done, outcomes, result


def _see(now: PlannedSweep, round: int, outcomes: Mapping[str, Outcome]) -> Inspection[SeenPrompts | None]:
    """The decision from the cells, or which of them cannot be used."""
    broken = {path for outcome in outcomes.values() for path in outcome.broken}
    if broken:
        return Inspection(None, broken)
    rounds, options = now.rounds, now.config.adaptive
    assert rounds is not None and options is not None
    ranking = {name: metric.prefers_lower for name, metric in now.config.metrics.items() if metric.ranks}
    try:
        scores = CellTables(now.plan, now.store, outcomes).scores()
        return Inspection(
            look(scores, rounds.order, rounds.ends[round], rounds.prompt_ids, now.sources.generators, ranking, options),
            frozenset(),
        )
    except BrokenCell as error:
        return Inspection(None, {error.path})


class CellTables:
    """The cells of a plan that hold a table: not those that failed, nor those that were left out."""

    def __init__(self, plan: Plan, store: Store, outcomes: Mapping[str, Outcome]) -> None:
        self.plan, self.store, self.outcomes = plan, store, outcomes
        self._failed = {path for path, outcome in outcomes.items() if outcome.state == "failed"}

    def of(self, cells: Sequence[PlannedCell]) -> list[str]:
        """The paths of those of the cells."""
        return [cell.path for cell in cells if cell.path not in self._failed and cell not in self.plan.left]

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A cell's rows; raises BrokenCell where it is damaged."""
        return self.store.read(path, draft=is_draft(path, self.outcomes), columns=columns)

    def scores(self) -> RunScores:
        """All scores."""
        paths = [path for cells in self.plan.scores.values() for path in self.of(cells)]
        return RunScores([partial(self.read, path) for path in paths])
