"""Runs jobs in the test's own process, from parsing the command line to printing the output."""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.jobs import scorer
from plumbline.jobs.command import choose_schema, get_command, load_values, run_job
from plumbline.jobs.overrides import load_functions
from plumbline.jobs.table import JOBS
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.store import Store


class FinishedJob(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line of the error message."""
        (line,) = self.err.splitlines()
        return line

    @property
    def words(self) -> str:
        """The output as one line, without the vertical lines of tables."""
        return " ".join(self.out.replace("│", " ").split())


def run(job: str, *words: str) -> FinishedJob:
    module = JOBS[job]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = run_job(module.COMMAND, module.main, words)
        except SystemExit as ended:  # raised by --help and --version
            code = ended.code
    return FinishedJob(int(code or 0), out.getvalue(), err.getvalue())


def run_for_output(job: str, *words: str, code: int = 0) -> str:
    """Run a job, which must end with this exit code; return its output."""
    ended = run(job, *words)
    assert ended.code == code, ended
    return ended.out


def run_refused(job: str, *words: str, code: int | None = None) -> str:
    """Run a job that must fail; return its error message, which must be a single line.

    The exit code must be `code`, or either 1 or 64 if `code` is None.
    """
    ended = run(job, *words)
    assert ended.code == code if code is not None else ended.code in (1, os.EX_USAGE), ended
    return ended.line


def load_job_config(job: str, *words: str) -> Any:
    """Return the configuration that a job reads from these arguments; raise ConfigError if they are invalid."""
    command = scorer.COMMAND if job == "scorer" else get_command(job)  # for plumbline.open_scorer
    values = load_values(command, words)
    return read_config(load_functions(values), choose_schema(command, values))


def open_store_at(place: str | Path) -> Store:
    """Open the store in a folder or at an s3:// address."""
    return Store(StorageConfig().locate(str(place)))


def find_newest_run_folder(store: str | Path) -> Path:
    """Return the folder of the newest run in a store."""
    runs = Path(store) / "runs"
    return runs / (runs / "latest").read_text().strip()
