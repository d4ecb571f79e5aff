"""Runs one sweep: sharded Parquet in, ranked generators out."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import KEPT, Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.display.leaderboards import show_leaderboards, show_note_kept
from plumbline.jobs.display.plan_table import show_plan, show_suite_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay, seconds_afterwards, show_phase
from plumbline.jobs.logs import write_log
from plumbline.jobs.overrides import SWEEP_KEYS, name_store
from plumbline.jobs.table import find_job
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, Ending
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.store.runs import has_report, name_by_time, name_newest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import Suite, find_suite_of, name_newest_of
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs, list_inputs, plan_inputs
from plumbline.pipelines.sweeps.suite import PlannedSuite, compute_suite, plan_suite
from plumbline.pipelines.sweeps.sweep import FinishedSweep, run_sweep, unchanged_sweep

COMMAND = Command(
    "sweep",
    "Score every image of a benchmark with every metric, and rank the generators. With no choice it is sweep=shapes,\n"
    "the embedded benchmark.",
    SweepConfig,
    SWEEP_KEYS,
    first="sweep",
    otherwise="shapes",
    suite=SuiteConfig,
    stopped=KEPT,
)

AGAIN = "jobs.sweep with the same words"
"""Command that writes the page of a suite whose runs exist."""
RENEWED = "cells were damaged, or stood on what is no more, and were computed anew; if that goes on, check the disk"


def main(config: SweepConfig | SuiteConfig) -> int:
    """Run a sweep of one or several benchmarks, and write its log."""
    with write_log(config.log, [config.storage.key, config.storage.secret]):
        return _suite(make_console(), config) if isinstance(config, SuiteConfig) else _sweep(make_console(), config)


def _sweep(console: Console, config: SweepConfig) -> int:
    """Show the plan, compute missing cells and show the leaderboards.

    Return 0 if complete, 2 within and 1 over the budget of failed rows.
    """
    if config.image_model is not None:
        scoring: SweepConfig | None = find_job("generate").generate_missing(console, config)
        if scoring is None:
            return 0
        config = scoring
    inputs = list_inputs(config)
    unchanged = None if config.dry_run else unchanged_sweep(inputs)
    if unchanged is not None:
        console.print("0 cells to compute: everything is in the store")
        _show_finished(console, inputs, unchanged)
        name_newest(inputs.store, unchanged.run_id)
        return _show_end(console, unchanged, unchanged.ending).code
    planned = plan_inputs(inputs)
    show_plan(console, planned)
    if config.dry_run:
        return 0
    if config.adaptive is None:
        with ProgressDisplay(console, afterwards=seconds_afterwards([planned])) as display:
            finished = run_sweep(planned, display.update)
    else:
        planned, finished = _run_adaptive(console, planned)
    return _conclude(console, planned, finished).code


def _suite(console: Console, config: SuiteConfig) -> int:
    """Sweep several benchmarks: compute them together, and write a run for each and a page of all."""
    planned = plan_suite(config)
    show_suite_plan(console, planned)
    if config.dry_run:
        return 0
    suite_id = name_by_time(planned.store, datetime.now(UTC))
    with ProgressDisplay(console, afterwards=seconds_afterwards(planned.sweeps.values())) as display:
        planned = compute_suite(planned, suite_id, display.update)
    runs, worst = dict[str, str](), Ending()
    for name, inputs in planned.inputs.items():
        console.rule(escape(name), align="left")
        finished = planned.unchanged.get(name)
        if finished is not None:
            _show_finished(console, inputs, finished)
            ending = _show_end(console, finished, finished.ending)
        else:
            with ProgressDisplay(console) as display:
                finished = run_sweep(planned.sweeps[name], display.update)
            ending = _conclude(console, planned.sweeps[name], finished)
        worst = worst.worse(ending.of_part(name))
        runs[name] = finished.run_id
    name_newest_of(planned.store, runs)
    console.rule("all benchmarks", align="left")
    code = worst.code
    made = _afterwards(console, "page of the suite", AGAIN, lambda: show_suite(console, planned, suite_id, runs, code))
    ending = worst if made else Ending(OVER_BUDGET, "the page of the suite could not be made")
    say(console, f"suite of {plural(len(runs), 'benchmark')}, {ending}")
    return ending.code


def show_suite(console: Console, planned: PlannedSuite, suite_id: str, runs: Mapping[str, str], code: int) -> Suite:
    """Write the page of a suite and show its summary, unless there is a suite of the same runs."""
    store = planned.store
    suite = find_suite_of(store, runs)
    if suite is None:
        from plumbline.pipelines.report.suites import write_suite  # imports scipy

        left_out, notes = [str(entry) for entry in planned.left_out], [*planned.shared_prompts()]
        suite, page = write_suite(
            store,
            suite_id,
            runs,
            exit_code=code,
            settings=planned.config.settings,
            left_out=left_out,
            notes=notes,
        )
        for sentence in (page.headline, *page.overall):
            console.print(f"[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}", soft_wrap=True)
        for warning in page.warnings:
            warn(console, warning)
    say(console, f"the page of all benchmarks: {suite.page(store)}")
    return suite


def _conclude(console: Console, planned: PlannedSweep, finished: FinishedSweep) -> Ending:
    """Show the results of a benchmark, write its report, and return its ending."""
    _show_finished(console, planned, finished)
    reported = _ensure_report(console, planned, finished)
    return _show_end(
        console, finished, finished.ending if reported else Ending(OVER_BUDGET, "the report could not be made")
    )


def _show_finished(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    """Show the leaderboards, the agreement with people, and the earlier run if nothing changed."""
    show_leaderboards(console, finished, sweep.store, verbose=sweep.config.verbose)
    if finished.unchanged:
        say(console, f"nothing changed since run {finished.run_id}: {finished.folder}/report.html")
        show_note_kept(console, sweep, finished)
    show_judged(console, sweep, finished)


def _show_end(console: Console, finished: FinishedSweep, ending: Ending) -> Ending:
    """Show the last lines, and return the ending that they name."""
    show_renewed(console, finished)
    copied = f", copied {finished.copied} from rows of earlier ones" if finished.copied else ""
    say(console, f"computed {finished.computed} cells{copied}, run {finished.run_id}, {ending}")
    return ending


def _ensure_report(console: Console, planned: PlannedSweep, finished: FinishedSweep) -> bool:
    """Write the run's report if it is missing, and mark the run as the newest; return False if that failed."""
    command = f"plumbline report run={finished.run_id} {name_store(planned.config.store, planned.config.storage)}"
    reported = has_report(planned.store, finished.run_id) or _afterwards(
        console, "report", command, lambda: _report(console, planned, finished)
    )
    if reported:
        name_newest(planned.store, finished.run_id)
    return reported


def _run_adaptive(console: Console, planned: PlannedSweep) -> tuple[PlannedSweep, FinishedSweep]:
    """Run rounds until the generators can be distinguished; return the sweep of the prompts that sufficed."""
    from plumbline.operators.metaeval.decided_pairs import describe_certainty  # imports scipy
    from plumbline.pipelines.sweeps.adaptive import run_adaptive

    @contextmanager
    def watch() -> Iterator[Watch]:
        with ProgressDisplay(console) as display:
            yield display.update

    options = planned.config.adaptive
    if options is not None and options.method == "asymptotic":
        warn(console, describe_certainty(options.method, options.alpha))
    finished, now = run_adaptive(planned, watch, lambda seen: say(console, seen.line()))
    return now, finished


def _afterwards(console: Console, what: str, command: str, make: Callable[[], object]) -> bool:
    """Make a page of a finished run by calling `make`; return False if that failed, which does not affect the run.

    The warning names the page (`what`) and the command that makes it later.
    """
    try:
        with show_phase(console, f"writing the {what}"):
            make()
    except PlumblineError as error:
        warn(console, f"no {what}: {error}; make it later by {command}")
        return False
    return True


def show_judged(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    """Compare a run with people, if the sweep has a protocol and that has not been done; the report shows the result.

    If the run has its report already, all of the result is shown here.
    """
    protocol, run_id = sweep.config.protocol, finished.run_id
    if protocol is not None and not sweep.store.exists(f"runs/{run_id}/metaeval/judgements.parquet"):
        where = name_store(sweep.config.store, sweep.config.storage)
        command = f"plumbline report run={run_id} protocol={protocol.name} protocol.path={protocol.path} {where}"
        _afterwards(console, "agreement with people", command, lambda: _judge(console, sweep.store, protocol, finished))


def _judge(console: Console, store: Store, protocol: ProtocolConfig, finished: FinishedSweep) -> None:
    from plumbline.jobs.display.findings import show_agreement, show_conclusion  # imports scipy
    from plumbline.pipelines.metaeval.metaeval import judge_run

    findings = judge_run(store, finished.run_id, protocol)
    if finished.unchanged:
        show_agreement(console, findings)
        show_conclusion(console, findings)
    else:
        for warning in findings.warnings:
            warn(console, warning)


def show_renewed(console: Console, finished: FinishedSweep) -> None:
    """Warn if stored cells could not be used and were computed again."""
    if finished.renewed:
        warn(console, f"{finished.renewed} {RENEWED}")


def _report(console: Console, planned: PlannedSweep, finished: FinishedSweep) -> None:
    from plumbline.jobs.report import show_report  # imports scipy and the charts
    from plumbline.pipelines.report.report import write_report

    config = planned.config
    written = write_report(
        planned.store, finished.run_id, settings=config.settings, sources=planned.sources, cluster=config.cluster
    )
    show_report(console, written)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
