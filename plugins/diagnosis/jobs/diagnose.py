"""Diagnoses a sweep's metrics: shows their correlations, their questions, and their scores without some inputs."""

import sys

from rich.console import Console

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.pipelines.base.exit_codes import OVER_BUDGET
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.runs import make_run_newest
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from plumbline.plugins.diagnosis.diagnosing import DiagnoseConfig, diagnose, plan_diagnosis, write_page
from plumbline.plugins.diagnosis.diagnosis import make_tables
from plumbline.plugins.diagnosis.stored import write_diagnosis

COMMAND = Command(
    "diagnose",
    "Show how good the metrics of a sweep are, and write its run: how strongly they correlate with each other and\n"
    "with properties of prompts, what they ask, and how they score without the right image, any image or word order.",
    DiagnoseConfig,
    SWEEP_KEYS,
    first="sweep",
    stopped=STOPPED_MESSAGE,
)


def main(config: DiagnoseConfig) -> int:
    """Diagnose the sweep; write a log of the command, and return the exit code."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _run_diagnosis(make_console(), config)


def _run_diagnosis(console: Console, config: DiagnoseConfig) -> int:
    """Show the plan, compute the metrics and their variants, and write the sweep's run with its diagnosis.

    Return the sweep's exit code, or 1 if a variant could not be computed.
    """
    planned = plan_diagnosis(config)
    show_plan(console, planned.sweep)
    for note in planned.notes:
        say(console, note)
    if config.dry_run:
        return 0
    with ProgressDisplay(console) as display:
        diagnosis, failed = diagnose(planned, display.update)
    sweep = plan_sweep(config.make_sweep())
    with ProgressDisplay(console) as display:
        finished = run_sweep(sweep, display.update)
    for table in make_tables(diagnosis):
        show_table(console, table.title, table.names, table.rows, numbers=slice(2, None))
        say(console, table.caption)
    write_diagnosis(sweep.store, finished.run_id, diagnosis)
    if config.diagnosis.page is not None:
        write_page(config, diagnosis)
    written = write_report(
        sweep.store, finished.run_id, sources=sweep.sources, cluster=config.cluster, settings=config.settings
    )
    make_run_newest(sweep.store, finished.run_id)
    lost = sum(effect.n_null for effect in diagnosis.effects)
    if lost:
        warn(console, f"{lost} scored images lack the score without one of the metric's inputs; run the command again")
    say(console, f"written to {finished.folder}/diagnosis/ and {written.url}")
    for name, message in failed.items():
        warn(console, f"{name}: {message}")
    return OVER_BUDGET if failed else finished.exit_code


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
