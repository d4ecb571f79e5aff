"""Scores a benchmark's images with every metric, and ranks the generators."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_sentence, warn
from plumbline.jobs.display.leaderboards import show_leaderboards, show_outcome, warn_about_kept_note
from plumbline.jobs.display.plan_table import show_plan, show_suite_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay, estimate_reporting_seconds, show_phase
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS, format_store_arguments
from plumbline.jobs.table import find_job
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.exit_codes import COMPLETE, OVER_BUDGET, Ending
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.store.runs import has_report, make_run_newest, name_by_time
from plumbline.pipelines.store.suites import Suite, find_newest_suite_with, make_suite_newest
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs, list_inputs, plan_sweep_from_inputs
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.suite import PlannedSuite, compute_suite, plan_suite
from plumbline.pipelines.sweeps.sweep import run_sweep
from plumbline.pipelines.sweeps.unchanged_run import find_unchanged_run_by_listing

COMMAND = Command(
    "sweep",
    "Score every image of a benchmark with every metric, and rank the generators. The default is\n"
    "sweep=shapes, the embedded benchmark.",
    SweepConfig,
    SWEEP_KEYS,
    first="sweep",
    otherwise="sweep=shapes",
    suite=SuiteConfig,
    stopped=STOPPED_MESSAGE,
)


def main(config: SweepConfig | SuiteConfig) -> int:
    """Run a sweep of one or several benchmarks, and write its log."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        if isinstance(config, SuiteConfig):
            return _run_suite(make_console(), config)
        concluded = sweep_benchmark(make_console(), config)
        return COMPLETE if concluded is None else concluded.ending.code


class ConcludedSweep(NamedTuple):
    """The run that a sweep wrote or found unchanged, and the sweep's exit code."""

    run_id: str
    ending: Ending
    """Exit code 0 if no row failed, 2 if the failed rows are within the budget, and 1 if they exceed it."""


def sweep_benchmark(console: Console, config: SweepConfig) -> ConcludedSweep | None:
    """Show the plan, compute missing cells, show the leaderboards and write the report; return None for a dry run."""
    if config.image_model is not None:
        scoring: SweepConfig | None = find_job("generate").generate_missing_images(console, config)
        if scoring is None:
            return None
        config = scoring
    inputs = list_inputs(config)
    unchanged = None if config.dry_run else find_unchanged_run_by_listing(inputs)
    if unchanged is not None:
        console.print("0 cells to compute: everything is in the store")
        _show_results(console, inputs, unchanged)
        make_run_newest(inputs.store, unchanged.run_id)
        _show_closing_line(console, unchanged, unchanged.ending)
        return ConcludedSweep(unchanged.run_id, unchanged.ending)
    planned = plan_sweep_from_inputs(inputs)
    show_plan(console, planned, full=config.dry_run or config.verbose)
    if config.dry_run:
        return None
    if config.adaptive is None:
        with ProgressDisplay(
            console, afterwards=estimate_reporting_seconds([planned]), verbose=planned.config.verbose
        ) as display:
            finished = run_sweep(planned, display.update)
    else:
        planned, finished = _run_adaptive_sweep(console, planned)
    return ConcludedSweep(finished.run_id, _conclude_sweep(console, planned, finished))


def _run_suite(console: Console, config: SuiteConfig) -> int:
    planned = plan_suite(config)
    show_suite_plan(console, planned, full=config.dry_run or config.verbose)
    if config.dry_run:
        return 0
    suite_id = name_by_time(planned.store, datetime.now(UTC))
    with ProgressDisplay(
        console, afterwards=estimate_reporting_seconds(planned.sweeps.values()), verbose=config.verbose
    ) as display:
        planned = compute_suite(planned, suite_id, display.update)
    runs, worst = dict[str, str](), Ending()
    for name, inputs in planned.inputs.items():
        console.rule(escape(name), align="left")
        finished = planned.unchanged.get(name)
        if finished is not None:
            ending = finished.ending
            _show_results(console, inputs, finished)
            _show_closing_line(console, finished, ending)
        else:
            with ProgressDisplay(console) as display:
                finished = run_sweep(planned.sweeps[name], display.update)
            ending = _conclude_sweep(console, planned.sweeps[name], finished)
        worst = worst.choose_worse(ending.prefix_reason(name))
        runs[name] = finished.run_id
    make_suite_newest(planned.store, runs)
    console.rule("all benchmarks", align="left")
    made = _make_page(
        console,
        "page of the suite",
        "the same plumbline sweep command",
        lambda: show_suite(console, planned, suite_id, runs, worst.code),
        verbose=config.verbose,
    )
    ending = worst if made else Ending(OVER_BUDGET, "the page of the suite could not be made")
    say(console, f"suite of {format_quantity(len(runs), 'benchmark')}, {ending}")
    return ending.code


def show_suite(console: Console, planned: PlannedSuite, suite_id: str, runs: Mapping[str, str], code: int) -> Suite:
    """Write a suite's page and show the summary; if these runs already form a suite, only show its page's address."""
    store = planned.store
    suite = find_newest_suite_with(store, runs)
    if suite is None:
        from plumbline.pipelines.report.suites import write_suite  # imports scipy

        suite, page = write_suite(
            store,
            suite_id,
            runs,
            exit_code=code,
            settings=planned.config.settings,
            left_out=[str(entry) for entry in planned.left_out],
            notes=[*planned.describe_shared_prompts()],
        )
        for sentence in (page.headline, *page.overall):
            show_sentence(console, sentence)
        for warning in page.warnings:
            warn(console, warning)
    say(console, f"the page of all benchmarks: {suite.get_page_url(store)}")
    return suite


def _conclude_sweep(console: Console, planned: PlannedSweep, finished: FinishedSweep) -> Ending:
    store, config, ending = planned.store, planned.config, finished.ending
    _show_results(console, planned, finished)

    def make_report() -> None:
        from plumbline.jobs.report import show_report  # imports scipy and the charts
        from plumbline.pipelines.report.report import write_report

        report = write_report(
            store, finished.run_id, settings=config.settings, sources=planned.sources, cluster=config.cluster
        )
        show_report(console, report, full=config.verbose)

    command = f"plumbline report run={finished.run_id} {format_store_arguments(config.store, config.storage)}"
    if has_report(store, finished.run_id) or _make_page(
        console, "report", command, make_report, verbose=config.verbose
    ):
        make_run_newest(store, finished.run_id)
    else:
        ending = Ending(OVER_BUDGET, "the report could not be made")
    _show_closing_line(console, finished, ending)
    return ending


def _show_results(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    show_leaderboards(console, finished, sweep.store, verbose=sweep.config.verbose)
    compare_with_ratings(console, sweep, finished)
    if finished.unchanged:
        say(console, f"nothing changed since run {finished.run_id}: {finished.folder}/report.html")
        warn_about_kept_note(console, sweep, finished)


def _show_closing_line(console: Console, finished: FinishedSweep, ending: Ending) -> None:
    show_outcome(console, finished)
    warn_about_recomputed_cells(console, finished)
    copied = f", copied {finished.copied} from rows of earlier ones" if finished.copied else ""
    say(console, f"computed {finished.computed} cells{copied}, run {finished.run_id}, {ending}")


def _run_adaptive_sweep(console: Console, planned: PlannedSweep) -> tuple[PlannedSweep, FinishedSweep]:
    """Score rounds of prompts until the generators can be distinguished.

    Return the sweep restricted to the prompts that were needed, and its run.
    """
    from plumbline.operators.metaeval.decided_pairs import describe_certainty  # imports scipy
    from plumbline.pipelines.sweeps.adaptive import run_adaptive_sweep

    @contextmanager
    def watch() -> Iterator[Watch]:
        with ProgressDisplay(console) as display:
            yield display.update

    options = planned.config.adaptive
    if options is not None and options.method == "asymptotic":
        warn(console, describe_certainty(options.method, options.alpha))
    finished, shortened = run_adaptive_sweep(planned, watch, lambda seen: say(console, seen.describe()))
    return shortened, finished


def _make_page(console: Console, page: str, command: str, make: Callable[[], object], *, verbose: bool) -> bool:
    """Call `make` to write a page of a finished run; if it fails, warn with the `command` to use, and return False."""
    try:
        with show_phase(console, f"writing the {page}", verbose=verbose):
            make()
    except PlumblineError as error:
        warn(console, f"no {page}: {error}; write it later with {command}")
        return False
    return True


def compare_with_ratings(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    """Compare a run with human ratings if the sweep has a protocol and the comparison is missing.

    The report shows the result; if the run already has its report, the result is printed here.
    """
    protocol, run_id = sweep.config.protocol, finished.run_id
    if protocol is None or sweep.store.exists(f"runs/{run_id}/metaeval/judgements.parquet"):
        return

    def judge() -> None:
        from plumbline.jobs.display.findings import show_agreement, show_conclusion  # imports scipy
        from plumbline.pipelines.metaeval.metaeval import judge_run

        findings = judge_run(sweep.store, run_id, protocol)
        if finished.unchanged:
            show_agreement(console, findings)
            show_conclusion(console, findings)
        else:
            for warning in findings.warnings:
                warn(console, warning)

    store = format_store_arguments(sweep.config.store, sweep.config.storage)
    command = f"plumbline report run={run_id} protocol={protocol.name} protocol.path={protocol.path} {store}"
    _make_page(console, "agreement with people", command, judge, verbose=sweep.config.verbose)


def warn_about_recomputed_cells(console: Console, finished: FinishedSweep) -> None:
    """Warn if stored cells could not be used and were recomputed."""
    if finished.renewed:
        problem = "damaged or outdated cells were recomputed; if this happens again, check the disk"
        warn(console, f"{finished.renewed} {problem}")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
