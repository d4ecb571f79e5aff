"""Runs a nightly sweep: scores new images, and reports regressions since the night before."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.display.leaderboards import show_leaderboards, show_outcome, warn_about_kept_note
from plumbline.jobs.display.plan_table import show_plan, show_suite_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay, estimate_reporting_seconds, show_phase
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS, format_store_arguments
from plumbline.jobs.sweep import compare_with_ratings, show_suite, warn_about_recomputed_cells
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.exit_codes import LEASE_HELD, LEASE_LOST, Ending
from plumbline.pipelines.maintenance.retention import remove_unkept_runs
from plumbline.pipelines.nightly.deadline import NightStopped, StopNight, stop_early
from plumbline.pipelines.nightly.gates import open_gate
from plumbline.pipelines.nightly.nightly_config import NightConfig, NightlyConfig, NightlySuiteConfig
from plumbline.pipelines.nightly.outcome import (
    NightOutcome,
    SuiteOutcome,
    mark_reported,
    read_outcome,
    read_suite_outcome,
)
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.lease import LeaseHeld, LeaseLost, LeaseRecord, take_lease
from plumbline.pipelines.store.runs import LATEST_REPORT_FILE, has_report, make_run_newest, name_by_date, name_by_time
from plumbline.pipelines.store.store import Store, open_store
from plumbline.pipelines.store.suites import Suite, make_suite_newest
from plumbline.pipelines.sweeps.planning import (
    PlannedSweep,
    SweepInputs,
    list_inputs,
    plan_sweep,
    plan_sweep_from_inputs,
)
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.suite import PlannedSuite, compute_suite, plan_suite
from plumbline.pipelines.sweeps.sweep import run_sweep
from plumbline.pipelines.sweeps.unchanged_run import find_unchanged_run_by_listing

if TYPE_CHECKING:
    from plumbline.pipelines.nightly.regressions import ComparedRun

COMMAND = Command(
    "nightly",
    "Score new images and metrics, compare the run with the night before, and report regressions.",
    NightlyConfig,
    SWEEP_KEYS,
    first="sweep",
    suite=NightlySuiteConfig,
    stopped=STOPPED_MESSAGE,
)
NIGHTLY_LEASE_NAME = "nightly"
"""Name of the lease in the store; it prevents two nightly runs at the same time."""
MAX_LISTED_REGRESSIONS = 20


class NightResult(NamedTuple):
    """Result of a nightly run, with the data for the job's summary and exit code."""

    outcome: NightOutcome | SuiteOutcome
    runs: Sequence[NightOutcome]
    """Outcome of each benchmark's run, whether it is reported now or was reported earlier."""
    computed: int
    """Number of cells that were computed."""
    ending: Ending
    """Exit code and its reason; regressions are ignored if the outcome was reported earlier."""
    new: bool
    """True if the outcome is reported now, False if it was reported earlier."""


def main(config: NightlyConfig | NightlySuiteConfig) -> int:
    """Run the sweep, compare and report it, and return the exit code: the worst one if there are several benchmarks.

    Exit codes: 0, 1 or 2 as for a sweep; 3 for a regression; 4 if another nightly run is in progress; 5 if another run
    took the lease; 6 if the deadline has passed; 7 if the gate failed.
    """
    console, options = make_console(stderr=config.nightly.json), config.nightly
    with log_to_file(config.log, [config.storage.key, config.storage.secret, options.webhook]):
        if options.gate is not None:  # report a broken file before waiting for another nightly run
            open_gate(config.storage.locate(options.gate))
        if config.dry_run:
            if isinstance(config, NightlySuiteConfig):
                show_suite_plan(console, _plan_suite(config))
            else:
                _check_gate(config, [config])
                show_plan(console, plan_sweep(config.make_sweep()))
            return 0
        try:
            with stop_early(options.deadline) as stop:
                return _run_leased(console, config, stop)
        except (LeaseHeld, LeaseLost, NightStopped) as error:
            warn(console, str(error))
            is_held = isinstance(error, LeaseHeld)
            code = error.exit_code if isinstance(error, NightStopped) else LEASE_HELD if is_held else LEASE_LOST
            console.print(f"no results are reported for this night (exit code {code})")
            return code


def _plan_suite(config: NightlySuiteConfig) -> PlannedSuite:
    planned = plan_suite(config)
    _check_gate(config, [inputs.config for inputs in planned.inputs.values()])
    return planned


def _check_gate(config: NightlyConfig | NightlySuiteConfig, sweeps: Iterable[SweepConfig]) -> None:
    if config.nightly.gate is not None:
        gate = open_gate(config.storage.locate(config.nightly.gate))
        gate.check({sweep.benchmark.name: [*sweep.metrics] for sweep in sweeps})


def _run_leased(console: Console, config: NightlyConfig | NightlySuiteConfig, stop: StopNight) -> int:
    """Take the lease, run, delete runs that are not kept, and return the exit code."""
    options = config.nightly
    store = open_store(config)
    store.check()

    def announce(other: LeaseRecord) -> None:
        limits = f"up to {options.lease:g} seconds for a sign of life, and {options.wait:g} for it to end"
        say(console, f"waiting for {other}: {limits}")

    with take_lease(
        store, NIGHTLY_LEASE_NAME, NIGHTLY_LEASE_NAME, seconds=options.lease, wait=options.wait, on_wait=announce
    ) as lease:
        lease.when_lost = stop
        if isinstance(config, NightlySuiteConfig):
            night = _run_suite(console, config, lease.renew)
        else:
            night = _run_benchmark(console, config, lease.renew)
        outcome = night.outcome
        if night.new:
            if outcome.webhook not in (None, "delivered"):
                warn(console, f"nightly.webhook: {outcome.webhook}; the outcome is in {store.place.url}/{outcome.path}")
            say(console, f"latest report: {store.place.url}/{LATEST_REPORT_FILE}")
        dropped = _drop_runs(console, store, night.runs, options, lease.renew)
        say(console, outcome.summarize() if night.new else f"reported before: {outcome.summarize()}")
        say(console, f"computed {night.computed} cells, {outcome.name}, {night.ending}")
        if options.json:
            extra = {"new": night.new, "exit_code": night.ending.code, "dropped": dropped}
            print(json.dumps(outcome.to_json() | extra, indent=1))
        return night.ending.code


def _run_benchmark(console: Console, config: NightlyConfig, assert_lease: Callable[[], None]) -> NightResult:
    _check_gate(config, [config])
    inputs = list_inputs(config.make_sweep())
    finished, sources = find_unchanged_run_by_listing(inputs), None
    if finished is None:
        planned = plan_sweep_from_inputs(inputs)
        show_plan(console, planned)
        finished, sources = _run_sweep(console, planned, assert_lease), planned.sources
    earlier = _show_unchanged(console, inputs, finished)
    if earlier is not None:
        make_run_newest(inputs.store, finished.run_id, assert_lease)
        return NightResult(earlier, [earlier], finished.computed, finished.ending, new=False)
    from plumbline.pipelines.nightly.regressions import make_outcomes, publish_outcome  # imports scipy

    compared = _compare_run(console, inputs, finished, sources, config.nightly, assert_lease)
    (outcome,) = make_outcomes([compared], config.nightly)
    outcome = publish_outcome(inputs.store, outcome, config.nightly, assert_lease)
    if outcome.compared_with is None:
        say(console, f"compared with no earlier run: {outcome.not_compared}")
    _show_regressions(console, outcome)
    return NightResult(
        outcome, [outcome], finished.computed, _make_night_ending(outcome.exit_code, finished.ending), new=True
    )


def _run_suite(console: Console, config: NightlySuiteConfig, assert_lease: Callable[[], None]) -> NightResult:
    planned = _plan_suite(config)
    store = planned.store
    show_suite_plan(console, planned)
    suite_id = name_by_time(store, datetime.now(UTC))
    with ProgressDisplay(
        console, afterwards=estimate_reporting_seconds(planned.sweeps.values()), verbose=config.verbose
    ) as display:
        planned = compute_suite(planned, suite_id, display.update)
    runs, compared, reported = dict[str, FinishedSweep](), list["ComparedRun"](), list[NightOutcome]()
    for name, inputs in planned.inputs.items():
        console.rule(escape(name), align="left")
        sweep = planned.sweeps.get(name)
        runs[name] = planned.unchanged[name] if sweep is None else _run_sweep(console, sweep, assert_lease)
        earlier = _show_unchanged(console, inputs, runs[name])
        if earlier is not None:
            reported.append(earlier)
        else:
            sources = None if sweep is None else sweep.sources
            compared.append(_compare_run(console, inputs, runs[name], sources, config.nightly, assert_lease))
    console.rule("all benchmarks", align="left")
    run_ids = {name: finished.run_id for name, finished in runs.items()}
    make_suite_newest(store, run_ids, assert_lease)
    ending = reduce(Ending.choose_worse, (finished.ending.prefix_reason(name) for name, finished in runs.items()))
    assert_lease()
    suite = show_suite(console, planned, suite_id, run_ids, ending.code)
    outcome = read_suite_outcome(store, suite.suite_id)
    new = outcome is None
    if outcome is None:
        outcome = _report_suite(console, store, suite, compared, config.nightly, assert_lease)
    mark_reported(store, outcome)
    return NightResult(
        outcome=outcome,
        runs=[*{each.run_id: each for each in (*reported, *outcome.benchmarks)}.values()],
        computed=sum(finished.computed for finished in runs.values()),
        ending=_make_night_ending(outcome.exit_code, ending) if new else ending,
        new=new,
    )


def _make_night_ending(code: int, sweeps: Ending) -> Ending:
    """Return how a nightly run ended, given its exit code; keep the sweeps' reason if their code is the same."""
    return sweeps if code == sweeps.code else Ending(code)


def _report_suite(
    console: Console,
    store: Store,
    suite: Suite,
    compared: Sequence["ComparedRun"],
    options: NightConfig,
    assert_lease: Callable[[], None],
) -> SuiteOutcome:
    from plumbline.pipelines.nightly.regressions import (  # imports scipy
        make_outcomes,
        make_suite_outcome,
        publish_outcome,
    )

    outcome = make_suite_outcome(suite, suite.get_page_url(store), make_outcomes(compared, options))
    outcome = publish_outcome(store, outcome, options, assert_lease)
    outcomes = {each.run_id: each for each in outcome.benchmarks}
    for benchmark, run_id in suite.runs.items():
        if run_id in outcomes:
            say(console, outcomes[run_id].summarize())
            _show_regressions(console, outcomes[run_id])
        else:
            say(console, f"{benchmark}, run {run_id}: nothing new")
    return outcome


def _run_sweep(console: Console, planned: PlannedSweep, assert_lease: Callable[[], None]) -> FinishedSweep:
    with ProgressDisplay(
        console, afterwards=estimate_reporting_seconds([planned]), verbose=planned.config.verbose
    ) as display:
        return run_sweep(planned, display.update, name=name_by_date, assert_lease=assert_lease)


def _show_unchanged(console: Console, inputs: SweepInputs, finished: FinishedSweep) -> NightOutcome | None:
    """If the run was already reported, print that nothing is new and return its outcome; otherwise return None.

    If the report of the earlier run is damaged, warn and write it again.
    """
    warn_about_kept_note(console, inputs, finished)
    store, run_id = inputs.store, finished.run_id
    outcome = read_outcome(store, run_id) if store.exists(f"runs/{run_id}/report.html") else None
    if outcome is not None:
        if not has_report(store, run_id):
            from plumbline.pipelines.report.report import NO_COMPARISON, write_report  # imports scipy and the charts

            config = inputs.config
            warn(console, f"{outcome.report}: the page was damaged, and is written again; check the disk")
            compare = outcome.compared_with or NO_COMPARISON  # the same run as in the outcome
            try:
                write_report(store, run_id, compare=compare, settings=config.settings, cluster=config.cluster)
            except PlumblineError as error:
                command = f"plumbline report run={run_id} {format_store_arguments(config.store, config.storage)}"
                warn(console, f"no report: {error}; write it later with {command}")
        say(console, f"nothing new since run {run_id}: {outcome.report}")
    return outcome


def _compare_run(
    console: Console,
    inputs: SweepInputs,
    finished: FinishedSweep,
    sources: Sources | None,
    options: NightConfig,
    assert_lease: Callable[[], None],
) -> "ComparedRun":
    from plumbline.jobs.report import show_report  # imports scipy and the charts
    from plumbline.pipelines.nightly.regressions import compare_run

    config, run_id = inputs.config, finished.run_id
    show_leaderboards(console, finished, inputs.store, verbose=config.verbose)
    compare_with_ratings(console, inputs, finished)
    with show_phase(console, "writing the report", verbose=config.verbose):
        compared = compare_run(
            inputs.store,
            run_id,
            options,
            sources=sources,
            assert_lease=assert_lease,
            cluster=config.cluster,
            settings=config.settings,
        )
    show_report(console, compared.written)
    show_outcome(console, finished)
    if compared.gate is not None:
        compared.gate.show(console)
    warn_about_recomputed_cells(console, finished)
    if compared.trends.url is None:
        command = f"plumbline trends {format_store_arguments(config.store, config.storage)}"
        warn(console, f"the trends page could not be written: {compared.trends.problem}; write it later with {command}")
    else:
        say(console, f"trends: {compared.trends.url}")
    return compared


def _show_regressions(console: Console, outcome: NightOutcome) -> None:
    for moved in outcome.regressions[:MAX_LISTED_REGRESSIONS]:
        console.print(f"[red]worse[/] {escape(str(moved))}", soft_wrap=True)
    if len(outcome.regressions) > MAX_LISTED_REGRESSIONS:
        say(
            console,
            f"{format_quantity(len(outcome.regressions) - MAX_LISTED_REGRESSIONS, 'more regression')} in nightly.json",
        )


def _drop_runs(
    console: Console,
    store: Store,
    outcomes: Sequence[NightOutcome],
    options: NightConfig,
    assert_lease: Callable[[], None],
) -> list[str] | None:
    """Delete the runs that are not kept and return their ids; return None if the deletion failed or was stopped."""
    # the outcome is already published, so an error here does not change the exit code
    dropped = list[str]()
    try:
        for outcome in outcomes:
            stay = {outcome.run_id, outcome.compared_with or outcome.run_id, options.compare}
            dropped += remove_unkept_runs(
                store,
                options.keep_runs,
                job=NIGHTLY_LEASE_NAME,
                benchmark=outcome.benchmark,
                also_keep=stay,
                assert_lease=assert_lease,
            )
    except (PlumblineError, NightStopped) as error:
        warn(console, f"nightly.keep_runs: {error}; the next night drops the remaining runs")
        return None
    if dropped:
        say(console, f"runs dropped by nightly.keep_runs: {', '.join(dropped)}")
    return dropped


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
