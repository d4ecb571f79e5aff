"""Adaptive sweeps: rounds of prompts, in a fixed random order, until every pair of generators is decided.

Each round plans its own prompts and the prompts of all earlier rounds. Its decisions depend only on its cells, so a
sweep that was killed makes the same decisions when it is run again.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from plumbline.operators.metaeval.decided_pairs import SweepProgress, decide_pairs
from plumbline.operators.metrics.metric import compares_actively
from plumbline.operators.results.pair_comparisons import read_duels
from plumbline.pipelines.maintenance.running_sweeps import count_deletions
from plumbline.pipelines.plans.plan import replace_missing_cells
from plumbline.pipelines.running.events import ProgressTotals, Watch, combine_displays
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.store.store import StoreError
from plumbline.pipelines.sweeps.computing import (
    CellTables,
    Inspection,
    add_earlier_rounds,
    add_node_times,
    compute_and_repair,
    inspect_cells,
    register_sweep,
)
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.sweep import run_sweep


def run_adaptive_sweep(
    planned: PlannedSweep,
    display: Callable[[], AbstractContextManager[Watch]],
    on_round: Callable[[SweepProgress], None],
) -> tuple[FinishedSweep, PlannedSweep]:
    """Compute rounds until every pair is decided, then write the run; `on_round` is called with each round's decisions.

    Returns the run, and the sweep limited to the prompts that were needed. Raises ConfigError if a score is outside
    `adaptive.range`.
    """
    rounds = planned.rounds
    assert rounds is not None, "the sweep was planned as an adaptive one"
    now, outcomes, last_rounds = planned, dict[str, Outcome](), dict[tuple[str, str], int]()
    for round in range(len(rounds.ends)):
        # plan again on the current store, leaving out the cells that this run has tried
        deletions = count_deletions(now.store)  # read before the cells are listed
        now = replace(
            now, sources=rounds.select_rounds_up_to(round, last_rounds), deletions=deletions, outcomes=outcomes
        )
        plan = now.plan_again()
        if outcomes:
            plan = replace_missing_cells(
                plan, {cell for cell in plan.missing if cell.path not in outcomes}, now.sources
            )
        now, outcomes, seen = _compute_round(replace(now, plan=plan), round, display)
        on_round(seen)
        if seen.is_done:
            break
        if any(map(compares_actively, now.config.metrics.values())):
            decided = set(rounds.sources.pair_counts) - _list_undecided_pairs(seen)
            last_rounds = dict.fromkeys(decided, round) | last_rounds
    now = replace(now, plan=replace_missing_cells(now.plan, frozenset(), now.sources), seen=seen, outcomes=outcomes)
    with display() as watch:
        return run_sweep(now, watch), now


def _list_undecided_pairs(seen: SweepProgress) -> set[tuple[str, str]]:
    rows = (row for row in seen.decisions.to_pylist() if row["verdict"] == "undecided")
    return {(min(both), max(both)) for row in rows for both in [(row["generator_a"], row["generator_b"])]}


def _compute_round(
    planned: PlannedSweep, round: int, display: Callable[[], AbstractContextManager[Watch]]
) -> tuple[PlannedSweep, dict[str, Outcome], SweepProgress]:
    """Compute a round's missing cells; return the sweep, the outcomes by path, and the decisions after the round.

    If no cell is missing or damaged, the sweep is not registered in the store. Raise StoreError if cells are still
    damaged after several attempts to recompute them.
    """
    rounds, options = planned.rounds, planned.config.adaptive
    assert rounds is not None and options is not None
    ranking = {name: metric.prefers_lower for name, metric in planned.config.metrics.items() if metric.ranks}
    active = [name for name, metric in planned.config.metrics.items() if compares_actively(metric)]

    def decide(repaired: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[SweepProgress | None]:
        def read(cells: CellTables) -> SweepProgress:
            end, generators = rounds.ends[round], repaired.sources.generators
            duels = {name: read_duels(cells.read_pairs(name), rounds.prompt_ids, generators) for name in active}
            scores = cells.read_scores()
            return decide_pairs(scores, rounds.order, end, rounds.prompt_ids, generators, ranking, options, duels)

        return inspect_cells(repaired, {**planned.outcomes, **outcomes}, read)

    if not planned.plan.missing:
        decided = decide(planned, {})
        if decided.result is not None:
            return planned, dict(planned.outcomes), decided.result
    totals = ProgressTotals()
    with display() as watch, register_sweep(planned, watch) as (working, watch):
        done, outcomes, result = compute_and_repair(working, combine_displays(totals.add, watch), decide)
    done, outcomes = add_earlier_rounds(add_node_times(done, totals), outcomes)
    if result is None:
        raise StoreError("cells in this round keep getting damaged; check the disk, and run again")
    return done, outcomes, result
