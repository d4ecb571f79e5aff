"""Runs one night: what is new is scored, the run is compared with the night before, and what became worse is told."""

import json
import sys
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.display.leaderboards import show_leaderboards, show_note_kept
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import logged
from plumbline.jobs.overrides import OF_SWEEPS
from plumbline.jobs.sweep import show_judged, show_renewed
from plumbline.operators.errors import PlumblineError
from plumbline.operators.sentences import plural
from plumbline.pipelines.base.exit_codes import HELD, LOST
from plumbline.pipelines.cells.lease import LeaseHeld, LeaseLost, LeaseSight, take
from plumbline.pipelines.cells.runs import LATEST_REPORT, by_date, name_newest
from plumbline.pipelines.cells.store import Store, open_store
from plumbline.pipelines.maintenance.retention import retain
from plumbline.pipelines.nightly.deadline import Stop, Stopped, bounded
from plumbline.pipelines.nightly.nightly_config import NightConfig, NightlyConfig
from plumbline.pipelines.nightly.outcome import NightOutcome, read_outcome
from plumbline.pipelines.sweeps.planning import PlannedSweep, list_inputs, plan_inputs, plan_sweep
from plumbline.pipelines.sweeps.sweep import FinishedSweep, run_sweep, unchanged_sweep

COMMAND = Command(
    "nightly",
    "Score what is new, compare with the night before, and tell what became worse.",
    NightlyConfig,
    OF_SWEEPS,
    first="sweep",
)
LEASE = "nightly"
"""In the store: one night at a time."""
MOST_SHOWN = 20


def main(config: NightlyConfig) -> int:
    """One night; its exit code is 0, 1 or 2 as a sweep's, 3 where something became worse, 4 where another night is at
    work, 5 where that took this one's place, and 6 past the deadline.
    """
    with logged(config.log, [config.storage.key, config.storage.secret, config.nightly.webhook]):
        return _run(config)


def _run(config: NightlyConfig) -> int:
    console = make_console(stderr=config.nightly.json)
    if config.dry_run:
        show_plan(console, plan_sweep(config.sweep()))
        return 0
    try:
        with bounded(config.nightly.deadline) as stop:
            return _night(console, config, stop)
    except LeaseHeld as error:
        return _ended(console, error, HELD)
    except LeaseLost as error:
        return _ended(console, error, LOST)
    except Stopped as error:
        return _ended(console, error, error.exit_code)


def _ended(console: Console, error: PlumblineError | Stopped, code: int) -> int:
    warn(console, str(error))
    console.print(f"nothing is told of this night, exit code {code}")
    return code


def _night(console: Console, config: NightlyConfig, stop: Stop) -> int:
    """A night under its lease."""
    options = config.nightly
    store = open_store(config)
    store.check()

    def watching(other: LeaseSight) -> None:
        say(
            console,
            f"watching {other}: up to {options.lease:g} seconds for a sign of life, and {options.wait:g} to end",
        )

    with take(store, LEASE, LEASE, seconds=options.lease, wait=options.wait, watching=watching) as lease:
        lease.when_lost = stop
        inputs = list_inputs(config.sweep())
        finished = unchanged_sweep(inputs)
        outcome = read_outcome(store, finished.run_id) if finished is not None else None
        if finished is None or outcome is None:
            planned = plan_inputs(inputs)
            show_plan(console, planned)
            with ProgressDisplay(console) as display:
                finished = run_sweep(planned, display.update, name=by_date, assert_lease=lease.renew)
            is_told = finished.unchanged and store.exists(f"runs/{finished.run_id}/report.html")
            outcome = read_outcome(store, finished.run_id) if is_told else None
        show_note_kept(console, inputs, finished)
        if outcome is None:
            outcome = _conclude(console, planned, finished, config, lease.renew)
            code = outcome.exit_code
        else:
            say(console, f"nothing new since run {finished.run_id}: {outcome.report}")
            code = finished.exit_code  # as the run that stands did, without its regressions
            name_newest(store, finished.run_id, lease.renew)
        dropped = _drop_runs(console, store, outcome, options, lease.renew)
        say(console, outcome.summary())
        console.print(f"computed {finished.computed} cells, run {finished.run_id}, exit code {code}")
        if options.json:
            of_night = {"new": not finished.unchanged, "exit_code": code, "dropped": dropped}
            print(json.dumps(outcome.to_json() | of_night, indent=1))
        return code


def _conclude(
    console: Console, planned: PlannedSweep, finished: FinishedSweep, config: NightlyConfig, hold: Callable[[], None]
) -> NightOutcome:
    """A run that no night has told of: a new one, or one that was left when its night ended early."""
    from plumbline.jobs.report import show_report  # imports scipy and the charts
    from plumbline.pipelines.nightly.regressions import compare_run, outcomes_of, tell

    show_leaderboards(console, finished, verbose=config.verbose)
    show_judged(console, planned, finished)
    compared = compare_run(
        planned.store,
        finished.run_id,
        config.nightly,
        sources=planned.sources,
        hold=hold,
        cluster=config.cluster,
        settings=config.settings,
    )
    (outcome,) = outcomes_of([compared], config.nightly)
    outcome = tell(planned.store, outcome, config.nightly, hold)
    show_report(console, compared.written)
    show_renewed(console, finished)
    if outcome.webhook not in (None, "delivered"):
        warn(console, f"nightly.webhook: {outcome.webhook}; the outcome is in {finished.folder}/nightly.json")
    if outcome.compared_with is None:
        say(console, f"compared with no earlier run: {outcome.not_compared}")
    for moved in outcome.regressions[:MOST_SHOWN]:
        console.print(f"[red]worse[/] {escape(str(moved))}", soft_wrap=True)
    if len(outcome.regressions) > MOST_SHOWN:
        say(console, f"{plural(len(outcome.regressions) - MOST_SHOWN, 'more regression')} in nightly.json")
    if outcome.trends is None:
        warn(console, f"no page of trends: {compared.trends.problem}; make it later by python -m jobs.trends")
    else:
        say(console, f"trends: {outcome.trends}")
    say(console, f"latest report: {planned.store.place.url}/{LATEST_REPORT}")
    return outcome


def _drop_runs(
    console: Console, store: Store, outcome: NightOutcome, options: NightConfig, hold: Callable[[], None]
) -> tuple[str, ...] | None:
    """Removes the runs that are not kept any more and gives their ids, or None where that was cut short.

    The night has told of its run by now, and ends as it would whatever comes.
    """
    stay = {outcome.run_id, outcome.compared_with or outcome.run_id, options.compare}
    try:
        dropped = retain(store, options.keep_runs, job=LEASE, benchmark=outcome.benchmark, besides=stay, hold=hold)
    except (PlumblineError, Stopped) as error:
        warn(console, f"nightly.keep_runs: {error}; what is left of the runs to drop, the next night drops")
        return None
    if dropped:
        say(console, f"runs dropped by nightly.keep_runs: {', '.join(dropped)}")
    return dropped


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
