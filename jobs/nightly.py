"""Runs one night: what is new is scored, the run is compared with the night before, and what became worse is told."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import KEPT, Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.display.leaderboards import show_leaderboards, show_note_kept
from plumbline.jobs.display.plan_table import show_plan, show_suite_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay, seconds_afterwards, show_phase
from plumbline.jobs.logs import logged
from plumbline.jobs.overrides import OF_SWEEPS, name_store
from plumbline.jobs.sweep import show_judged, show_renewed, show_suite
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.exit_codes import HELD, LOST, Ending
from plumbline.pipelines.cells.lease import LeaseHeld, LeaseLost, LeaseSight, take_lease
from plumbline.pipelines.cells.runs import LATEST_REPORT, has_report, name_by_date, name_by_time, name_newest
from plumbline.pipelines.cells.store import Store, open_store
from plumbline.pipelines.cells.suites import Suite, name_newest_of
from plumbline.pipelines.gates.gate_config import read_gate
from plumbline.pipelines.maintenance.retention import retain
from plumbline.pipelines.nightly.deadline import Stop, Stopped, bounded
from plumbline.pipelines.nightly.nightly_config import NightConfig, NightlyConfig, NightlySuiteConfig
from plumbline.pipelines.nightly.outcome import (
    NightOutcome,
    SuiteOutcome,
    mark_told,
    read_outcome,
    read_suite_outcome,
)
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs, list_inputs, plan_inputs, plan_sweep
from plumbline.pipelines.sweeps.suite import PlannedSuite, compute_suite, plan_suite
from plumbline.pipelines.sweeps.sweep import FinishedSweep, run_sweep, unchanged_sweep

if TYPE_CHECKING:
    from plumbline.pipelines.nightly.regressions import ComparedRun

COMMAND = Command(
    "nightly",
    "Score what is new, compare with the night before, and tell what became worse.",
    NightlyConfig,
    OF_SWEEPS,
    first="sweep",
    suite=NightlySuiteConfig,
    stopped=KEPT,
)
LEASE = "nightly"
"""In the store: one night at a time."""
MOST_SHOWN = 20


class Night(NamedTuple):
    """What came of a night."""

    outcome: NightOutcome | SuiteOutcome
    runs: Sequence[NightOutcome]
    """Of each benchmark, what was told of its run, in this night or an earlier one."""
    computed: int
    """Cells."""
    ending: Ending
    """That of the outcome, and where it had been told before, as its runs ended without their regressions."""
    new: bool
    """Whether the outcome is of this night."""


def main(config: NightlyConfig | NightlySuiteConfig) -> int:
    """One night; its exit code is 0, 1 or 2 as a sweep's, 3 where something became worse, 4 where another night is at
    work, 5 where that took this one's place, 6 past the deadline, and 7 where its gate failed. Of several benchmarks it
    is the worst.
    """
    with logged(config.log, [config.storage.key, config.storage.secret, config.nightly.webhook]):
        return _run(config)


def _run(config: NightlyConfig | NightlySuiteConfig) -> int:
    console = make_console(stderr=config.nightly.json)
    if config.nightly.gate is not None:  # a broken file is told before another night is waited for
        read_gate(config.storage.locate(config.nightly.gate))
    if config.dry_run:
        _show_plan(console, config)
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


def _show_plan(console: Console, config: NightlyConfig | NightlySuiteConfig) -> None:
    if isinstance(config, NightlySuiteConfig):
        show_suite_plan(console, _planned_suite(config))
    else:
        _check_gate(config, [config])
        show_plan(console, plan_sweep(config.sweep()))


def _planned_suite(config: NightlySuiteConfig) -> PlannedSuite:
    planned = plan_suite(config)
    _check_gate(config, [inputs.config for inputs in planned.inputs.values()])
    return planned


def _check_gate(config: NightlyConfig | NightlySuiteConfig, sweeps: Iterable[SweepConfig]) -> None:
    """Raises ConfigError now, and not after hours, for a gate that asks for what the sweeps do not have."""
    if config.nightly.gate is not None:
        gate = read_gate(config.storage.locate(config.nightly.gate))
        gate.check({sweep.benchmark.name: [*sweep.metrics] for sweep in sweeps})


def _ended(console: Console, error: PlumblineError | Stopped, code: int) -> int:
    warn(console, str(error))
    console.print(f"nothing is told of this night, exit code {code}")
    return code


def _night(console: Console, config: NightlyConfig | NightlySuiteConfig, stop: Stop) -> int:
    """A night under its lease."""
    options = config.nightly
    store = open_store(config)
    store.check()

    def watching(other: LeaseSight) -> None:
        say(
            console,
            f"watching {other}: up to {options.lease:g} seconds for a sign of life, and {options.wait:g} to end",
        )

    with take_lease(store, LEASE, LEASE, seconds=options.lease, wait=options.wait, on_wait=watching) as lease:
        lease.when_lost = stop
        if isinstance(config, NightlySuiteConfig):
            night = _of_several(console, config, lease.renew)
        else:
            night = _of_one(console, config, lease.renew)
        outcome = night.outcome
        if night.new:
            if outcome.webhook not in (None, "delivered"):
                warn(console, f"nightly.webhook: {outcome.webhook}; the outcome is in {store.place.url}/{outcome.path}")
            say(console, f"latest report: {store.place.url}/{LATEST_REPORT}")
        dropped = _drop_runs(console, store, night.runs, options, lease.renew)
        say(console, outcome.summary() if night.new else f"as told before: {outcome.summary()}")
        say(console, f"computed {night.computed} cells, {outcome.name}, {night.ending}")
        if options.json:
            of_night = {"new": night.new, "exit_code": night.ending.code, "dropped": dropped}
            print(json.dumps(outcome.to_json() | of_night, indent=1))
        return night.ending.code


def _of_one(console: Console, config: NightlyConfig, hold: Callable[[], None]) -> Night:
    """A night over one benchmark."""
    _check_gate(config, [config])
    inputs = list_inputs(config.sweep())
    finished, sources = unchanged_sweep(inputs), None
    if finished is None:
        planned = plan_inputs(inputs)
        show_plan(console, planned)
        finished, sources = _sweep(console, planned, hold), planned.sources
    told = _show_unchanged(console, inputs, finished)
    if told is not None:
        name_newest(inputs.store, finished.run_id, hold)
        return Night(told, [told], finished.computed, finished.ending, new=False)
    from plumbline.pipelines.nightly.regressions import outcomes_of, tell  # imports scipy

    compared = _compare(console, inputs, finished, sources, config.nightly, hold)
    (outcome,) = outcomes_of([compared], config.nightly)
    outcome = tell(inputs.store, outcome, config.nightly, hold)
    if outcome.compared_with is None:
        say(console, f"compared with no earlier run: {outcome.not_compared}")
    _show_regressions(console, outcome)
    return Night(outcome, [outcome], finished.computed, _with_reason(outcome.exit_code, finished.ending), new=True)


def _of_several(console: Console, config: NightlySuiteConfig, hold: Callable[[], None]) -> Night:
    """A night over several benchmarks: what they lack is computed together, each run is compared with the last one of
    its benchmark, and what came of all is told at once.
    """
    planned = _planned_suite(config)
    store = planned.store
    show_suite_plan(console, planned)
    suite_id = name_by_time(store, datetime.now(UTC))
    with ProgressDisplay(console, afterwards=seconds_afterwards(planned.sweeps.values())) as display:
        planned = compute_suite(planned, suite_id, display.update)
    runs, compared, told_before = dict[str, FinishedSweep](), list["ComparedRun"](), list[NightOutcome]()
    for name, inputs in planned.inputs.items():
        console.rule(escape(name), align="left")
        sweep = planned.sweeps.get(name)
        runs[name] = planned.unchanged[name] if sweep is None else _sweep(console, sweep, hold)
        told = _show_unchanged(console, inputs, runs[name])
        if told is not None:
            told_before.append(told)
        else:
            sources = None if sweep is None else sweep.sources
            compared.append(_compare(console, inputs, runs[name], sources, config.nightly, hold))
    console.rule("all benchmarks", align="left")
    run_ids = {name: finished.run_id for name, finished in runs.items()}
    name_newest_of(store, run_ids, hold)
    ending = reduce(Ending.worse, (finished.ending.of_part(name) for name, finished in runs.items()))
    hold()
    suite = show_suite(console, planned, suite_id, run_ids, ending.code)
    outcome = read_suite_outcome(store, suite.suite_id)
    new = outcome is None
    if outcome is None:
        outcome = _tell_suite(console, store, suite, compared, config.nightly, hold)
    mark_told(store, outcome)
    return Night(
        outcome=outcome,
        runs=[*{one.run_id: one for one in (*told_before, *outcome.benchmarks)}.values()],
        computed=sum(finished.computed for finished in runs.values()),
        ending=_with_reason(outcome.exit_code, ending) if new else ending,
        new=new,
    )


def _with_reason(code: int, of_sweeps: Ending) -> Ending:
    """Return the ending of a night, with its sweeps' reason if the exit code is theirs."""
    return of_sweeps if code == of_sweeps.code else Ending(code)


def _tell_suite(
    console: Console,
    store: Store,
    suite: Suite,
    compared: Sequence["ComparedRun"],
    options: NightConfig,
    hold: Callable[[], None],
) -> SuiteOutcome:
    """Tells of a suite, with a line for each of its benchmarks."""
    from plumbline.pipelines.nightly.regressions import outcome_of_suite, outcomes_of, tell  # imports scipy

    outcome = outcome_of_suite(suite, suite.page(store), outcomes_of(compared, options))
    outcome = tell(store, outcome, options, hold)
    of_run = {one.run_id: one for one in outcome.benchmarks}
    for benchmark, run_id in suite.runs.items():
        if run_id in of_run:
            say(console, of_run[run_id].summary())
            _show_regressions(console, of_run[run_id])
        else:
            say(console, f"{benchmark}, run {run_id}: nothing new")
    return outcome


def _sweep(console: Console, planned: PlannedSweep, hold: Callable[[], None]) -> FinishedSweep:
    with ProgressDisplay(console, afterwards=seconds_afterwards([planned])) as display:
        return run_sweep(planned, display.update, name=name_by_date, assert_lease=hold)


def _show_unchanged(console: Console, inputs: SweepInputs, finished: FinishedSweep) -> NightOutcome | None:
    """Return the outcome that a night reported for a run, and say that nothing is new; None if no night reported it."""
    show_note_kept(console, inputs, finished)
    store, run_id = inputs.store, finished.run_id
    outcome = read_outcome(store, run_id) if store.exists(f"runs/{run_id}/report.html") else None
    if outcome is not None:
        if not has_report(store, run_id):
            _write_damaged_report(console, inputs, outcome)
        say(console, f"nothing new since run {finished.run_id}: {outcome.report}")
    return outcome


def _write_damaged_report(console: Console, inputs: SweepInputs, outcome: NightOutcome) -> None:
    """Write a run's report again, compared with the same run as in its outcome."""
    from plumbline.pipelines.report.report import NO_RUN, write_report  # imports scipy and the charts

    config, run_id = inputs.config, outcome.run_id
    where = name_store(config.store, config.storage)
    warn(console, f"{outcome.report}: the page was damaged, and is written anew; if that goes on, check the disk")
    try:
        write_report(
            inputs.store,
            run_id,
            compare=outcome.compared_with or NO_RUN,
            settings=config.settings,
            cluster=config.cluster,
        )
    except PlumblineError as error:
        warn(console, f"no report: {error}; make it later by plumbline report run={run_id} {where}")


def _compare(
    console: Console,
    inputs: SweepInputs,
    finished: FinishedSweep,
    sources: Sources | None,
    options: NightConfig,
    hold: Callable[[], None],
) -> "ComparedRun":
    """A run that no night has told of, beside an earlier one, with its report and the page of trends."""
    from plumbline.jobs.gate import show_gate
    from plumbline.jobs.report import show_report  # imports scipy and the charts
    from plumbline.pipelines.nightly.regressions import compare_run

    config, run_id = inputs.config, finished.run_id
    show_leaderboards(console, finished, inputs.store, verbose=config.verbose)
    show_judged(console, inputs, finished)
    with show_phase(console, "writing the report"):
        compared = compare_run(
            inputs.store,
            run_id,
            options,
            sources=sources,
            hold=hold,
            cluster=config.cluster,
            settings=config.settings,
        )
    show_report(console, compared.written)
    if compared.gate is not None:
        show_gate(console, compared.gate)
    show_renewed(console, finished)
    if compared.trends.url is None:
        where = name_store(config.store, config.storage)
        warn(console, f"no page of trends: {compared.trends.problem}; make it later by plumbline trends {where}")
    else:
        say(console, f"trends: {compared.trends.url}")
    return compared


def _show_regressions(console: Console, outcome: NightOutcome) -> None:
    for moved in outcome.regressions[:MOST_SHOWN]:
        console.print(f"[red]worse[/] {escape(str(moved))}", soft_wrap=True)
    if len(outcome.regressions) > MOST_SHOWN:
        say(console, f"{plural(len(outcome.regressions) - MOST_SHOWN, 'more regression')} in nightly.json")


def _drop_runs(
    console: Console,
    store: Store,
    outcomes: Sequence[NightOutcome],
    options: NightConfig,
    hold: Callable[[], None],
) -> list[str] | None:
    """Removes the runs that are not kept any more and gives their ids, or None where that was cut short.

    The night has told of its runs by now, and ends as it would whatever comes.
    """
    dropped = list[str]()
    try:
        for outcome in outcomes:
            stay = {outcome.run_id, outcome.compared_with or outcome.run_id, options.compare}
            dropped += retain(store, options.keep_runs, job=LEASE, benchmark=outcome.benchmark, besides=stay, hold=hold)
    except (PlumblineError, Stopped) as error:
        warn(console, f"nightly.keep_runs: {error}; what is left of the runs to drop, the next night drops")
        return None
    if dropped:
        say(console, f"runs dropped by nightly.keep_runs: {', '.join(dropped)}")
    return dropped


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
