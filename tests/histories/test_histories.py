"""After any history of changes to a benchmark and a store, a run's tables equal those of a fresh store.

Every step is a command that a user types, or something that happens to the files between two commands.
"""

import contextlib
import io
import re
import shutil
import signal
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from plumbline.jobs import gc, report, status, sweep
from plumbline.jobs.command import Command, JobTerminated, run_job
from plumbline.jobs.table import JOBS
from tests.faults.outcomes import assert_same_counts, assert_same_tables
from tests.histories.bench import CHANGE_METHODS, ChangingBench
from tests.histories.damage import DAMAGE_WAYS, DRAWN_DAMAGE_WAYS, damage, damage_images, list_files_by_kind
from tests.histories.painter import PAINTER, Painter
from tests.operators.models.endpoint import KEY, KEY_VARIABLE

COMPLETE_SWEEP_PATTERN = re.compile(
    r"computed \d+ cells, (?:copied \d+ from rows of earlier ones, )?run (\S+), exit code (\d)"
)
EXIT_CODES = {0, 1, 2}
SMALL_SIZES, LARGE_SIZES = (4, 9), (66, 80)
"""Numbers of prompts of a small benchmark, and of one for which an adaptive sweep needs several rounds."""
LARGE_BENCHMARK_SHARE = 0.25
Step = tuple[Any, ...]
"""Name of a step, and its random arguments."""
TOLERANCE = 1e-5
"""Relative tolerance, because the last bits of a score depend on the other rows in its batch."""


class History:
    """A benchmark, a store, and the steps that change both."""

    def __init__(self, folder: Path, seed: int, painter: Painter) -> None:
        self.painter = painter
        self.folder, self.store = folder, folder / "store"
        self.chance = Random(seed)
        self.large = self.chance.random() < LARGE_BENCHMARK_SHARE
        self.shard_rows = self.chance.randint(1, 9)
        self.bench = ChangingBench(folder=folder / "bench", chance=self.chance)
        self.bench.begin(self.chance.randint(*(LARGE_SIZES if self.large else SMALL_SIZES)), self.chance.randint(2, 3))
        self.calm: dict[tuple[Any, ...], Path] = {}
        self.log: list[str] = []
        """Lines that describe the steps so far, shown if a step fails."""

    def perform(self, step: Step) -> None:
        """Call the step's method with the step's random arguments, and add the step to the log."""
        name, *drawn = step
        told = getattr(self, name)(*drawn)
        self.log.append(" ".join(map(str, [name, *drawn, *([told] if told else [])])))

    def sweep(self, metrics: str, flags: tuple[str, ...]) -> str:
        """Run a sweep, and assert that its tables equal those of a fresh store; return the run's id for the log."""
        options = self._list_options(metrics, flags)
        code, printed = self._sweep(self.store, *options)
        run = assert_complete(code, printed)
        assert (self.store / "runs/latest").read_text().split()[0] == run, printed
        if "verify=true" in flags:
            assert "all are intact" in self._sweep(self.store, *options, "dry_run=true")[1]
        if "retry_failed=true" not in flags:
            ours, calm = str(self.store / "runs" / run), str(self._sweep_fresh(*options))
            assert_same_tables(ours, calm, rtol=TOLERANCE)
            assert_same_counts(ours, calm)
        return f"run {run}"

    def change(self, change: str) -> None:
        """Change the benchmark by calling the method of ChangingBench whose name is `change`."""
        getattr(self.bench, change)()

    def damage(self, way: str) -> str:
        """Damage some of the store's files; return a description of the damage for the log."""
        return damage(self.store, way, self.chance)

    def regenerate(self, way: str) -> str:
        """Damage the generated images, generate them again and assert that all are correct; return the damage."""
        images = self.bench.folder / self.bench.images
        harmed = damage_images(images, PAINTER, way, self.chance)
        self.bench.version += 1
        code, printed = run(JOBS["generate"].COMMAND, JOBS["generate"].main, [
            *self.painter.list_arguments(), f"prompts={self.bench.folder}/prompts.parquet", f"images={images}",
            "cluster=here", f"shard_rows={self.shard_rows}",
        ])  # fmt: skip
        assert code == 0, printed
        self.painter.assert_drawn(images / PAINTER, self.bench.prompts)
        return harmed

    def undo_newest_sweep(self, share: float) -> None:
        """Delete the newest run and a fraction `share` of all cells, as if the sweep had been killed."""
        files = list_files_by_kind(self.store)
        runs = sorted(path.parent for path in files.get("manifest", []))
        if runs:
            shutil.rmtree(runs.pop())
            (self.store / "runs/latest").unlink(missing_ok=True)
        if runs:
            (self.store / "runs/latest").write_text(f"{runs[-1].name}\n")
        cells = files.get("cell", [])
        for path in self.chance.sample(cells, int(share * len(cells))):
            path.unlink()

    def stop(self, seconds: float, metrics: str, flags: tuple[str, ...]) -> str:
        """Interrupt a sweep after this number of seconds; return the sweep's exit code for the log."""
        armed = [True]

        def end(signum: int, frame: object) -> None:
            if armed and armed.pop():
                signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
        code = 143
        with contextlib.suppress(JobTerminated):
            try:
                code, printed = self._sweep(self.store, *self._list_options(metrics, flags))
                assert code in EXIT_CODES | {143}, printed
            finally:
                armed.clear()  # ignore a signal that comes late
                signal.setitimer(signal.ITIMER_REAL, 0)
        return f"exit code {code}"

    def run_other_job(self, job: str) -> str:
        """Run `jobs.gc`, `jobs.report` or `jobs.status` on the store, which may be damaged; return a line for the log.

        The job's exit code must be one of EXIT_CODES.
        """
        chosen = {"gc": (gc, ["delete=true", "grace_days=0"]), "report": (report, []), "status": (status, [])}
        module, arguments = chosen[job]
        code, printed = run(module.COMMAND, module.main, [f"store={self.store}", *arguments])
        assert code in EXIT_CODES, printed
        return f"exit code {code}"

    def _list_options(self, metrics: str, flags: tuple[str, ...]) -> tuple[str, ...]:
        return ("metric=[clipscore]" if self.large else metrics, *flags)

    def _sweep(self, store: Path, *options: str) -> tuple[int, str]:
        given = [
            "sweep=own_images", "models=shapes", "cluster=here", "benchmark.name=histories", f"store={store}",
            f"benchmark.prompts={self.bench.folder}/prompts.parquet",
            f"benchmark.images={self.bench.folder}/{self.bench.images}", f"shard_rows={self.shard_rows}",
        ]  # fmt: skip
        return run(sweep.COMMAND, sweep.main, [*given, *options])

    def _sweep_fresh(self, *options: str) -> Path:
        """Return the folder of a run with these options in a store of its own.

        The sweep runs only once for each version of the benchmark and options.
        """
        key = (self.bench.version, *options)
        if key not in self.calm:
            store = self.folder / f"calm-{len(self.calm)}"
            self.calm[key] = store / "runs" / assert_complete(*self._sweep(store, *options))
        return self.calm[key]


METRICS = ("metric=[clipscore]", "metric=[vqascore]", "metric=[vqascore,clipscore]", "metric=[dsg]")
SWEEP_FLAGS = (
    (),
    (),
    ("limit=3",),
    ("limit=70",),
    ("adaptive=betting", "adaptive.range=[-1,1]"),
    ("retry_failed=true",),
    ("verify=true",),
    ("benchmark.require_every_prompt=false",),
)
SWEEPS = st.sampled_from(METRICS), st.sampled_from(SWEEP_FLAGS)
REGENERATE_STEPS = [st.tuples(st.just("regenerate"), st.sampled_from(DRAWN_DAMAGE_WAYS))] if "generate" in JOBS else []
"""Strategy that draws the step `regenerate`; the list is empty without the generation plugin, which the step needs."""
STEPS = st.one_of(
    st.tuples(st.just("damage"), st.sampled_from(DAMAGE_WAYS)),
    st.tuples(st.just("damage"), st.sampled_from(DAMAGE_WAYS)),
    st.tuples(st.just("change"), st.sampled_from(CHANGE_METHODS)),
    st.tuples(st.just("change"), st.sampled_from(CHANGE_METHODS)),
    *REGENERATE_STEPS,
    st.tuples(st.just("undo_newest_sweep"), st.floats(0, 1)),
    st.tuples(st.just("stop"), st.floats(0, 1.5), *SWEEPS),
    st.tuples(st.just("run_other_job"), st.sampled_from(["gc", "report", "status"])),
)
"""Strategy that draws a step between two sweeps: the name of a method of History, and its arguments."""


def draw_rounds(max_rounds: int) -> st.SearchStrategy[list[tuple[list[Step], Step]]]:
    """Return a strategy for 2 to `max_rounds` rounds, each with one to three steps and a final sweep."""
    sweep = st.tuples(st.just("sweep"), *SWEEPS)
    return st.lists(st.tuples(st.lists(STEPS, min_size=1, max_size=3), sweep), min_size=2, max_size=max_rounds)


def run(command: Command, job: Any, arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its output, including stderr.

    Exceptions that the command does not turn into a one-line error are raised.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run_job(command, job, arguments)
    return code, printed.getvalue()


def assert_complete(code: int, printed: str) -> str:
    """Assert that a sweep ended normally; return the id of its run."""
    found = COMPLETE_SWEEP_PATTERN.search(printed)
    assert found is not None and int(found[2]) == code, printed
    return found[1]


def run_histories(count: int, max_rounds: int, *, shrink: bool) -> None:
    """Run `count` histories of up to `max_rounds` rounds after a first sweep; report each failure step by step."""

    @settings(
        max_examples=count,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1), st.tuples(st.just("sweep"), *SWEEPS), draw_rounds(max_rounds))
    def run_history(seed: int, first: Step, later: list[tuple[list[Step], Step]]) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="history-") as folder,
            pytest.MonkeyPatch.context() as patch,
            Painter() as painter,
        ):
            patch.setenv(KEY_VARIABLE, KEY)
            patch.setenv(("FORCE_COLOR", "NO_COLOR")[seed % 2], "1")  # on a terminal, or not
            history = History(Path(folder), seed, painter)
            steps = [first, *(step for happenings, swept in later for step in (*happenings, swept))]
            for number, step in enumerate(steps):
                try:
                    history.perform(step)
                except BaseException:
                    told = [*history.log, f"then failed: {steps[number]}"]
                    note("\n".join(told))
                    raise

    run_history()


def test_after_any_history_a_runs_tables_equal_those_of_a_fresh_store() -> None:
    run_histories(2, 2, shrink=False)


@pytest.mark.slow
def test_after_many_long_histories_tables_equal_those_of_a_fresh_store() -> None:
    run_histories(150, 5, shrink=True)
