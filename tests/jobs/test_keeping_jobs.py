"""The commands in docs/keeping.md work as documented, and other processes can see running sweeps."""

import io
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from plumbline.jobs import status
from plumbline.jobs.command import JobTerminated
from plumbline.jobs.status import watch
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.maintenance.running_sweeps import RunningSweep, StageState, SweepStatus, list_running_sweeps
from plumbline.pipelines.running.events import CellsExpected, ShardFinished, ShardStarted
from plumbline.pipelines.sweeps.computing import register_sweep
from tests.bench_of import SMALL_OPTIONS, UNJUDGED_OPTIONS, Bench, plan_bench, read_image_rows, write_benchmark
from tests.commands import FinishedJob, open_store_at, run, run_for_output, run_refused
from tests.environment import ROOT
from tests.faults.driving import wait_until

DOCS_TEXT = (Path(__file__).parent.parent.parent / "docs" / "keeping.md").read_text()
PAGE_COMMANDS = re.findall(r"^    plumbline (\w+) (.*)$", DOCS_TEXT, flags=re.MULTILINE)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    bench, store = write_benchmark(tmp_path / "bench", ["atlas"]), tmp_path / "store"
    ours = [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images", "benchmark.name=small"]
    ours += ["metric=[edge_density]", *SMALL_OPTIONS]
    run_for_output("sweep", "sweep=shapes", f"store={store}", *ours)
    (run_folder,) = store.glob("runs/*/")
    cell = next(store.glob("scores/*/*/*.parquet"))
    output = ""
    for name, arguments in PAGE_COMMANDS:
        given = shlex.split(arguments.replace("STORE", str(store)))
        output += run_for_output(name, *given, *(ours if name == "sweep" else ()))
    assert "retry_failed: 0 failed rows of 0 cells" in output and "no sweep is running" in output
    assert output.count("all are intact") == 2
    assert "nothing can be removed" in output and "image_statistics" in output
    assert run_folder.exists() and cell.exists() and len(PAGE_COMMANDS) == 11


def test_a_dry_run_lists_removable_files_and_the_option_that_removes_them(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text("{}")
    (tmp_path / "markers").mkdir()
    (tmp_path / "markers/dead").write_text("x" * 2048)
    old = ("gc", f"store={tmp_path}", "grace_days=0")
    assert "1 files, 2.0 kB, not needed; add delete=true to remove them" in run_for_output(*old)
    assert (
        "1 files, 2.0 kB, removed" in run_for_output(*old, "delete=true") and not (tmp_path / "markers/dead").exists()
    )
    assert "prune: expected one or more of answers" in run_refused("gc", f"store={tmp_path}", "prune=[scores]", code=64)


RUNNING_SWEEP = SweepStatus(
    run="20261123-010203-000000",
    benchmark="small",
    host="node7",
    began="2026-11-23T01:02:03+00:00",
    stages={
        "answers:vqa": StageState(cells=90, missing=60, done=15, rows=240, failed_rows=2, seconds=30.0, calls=700),
        "scores": StageState(cells=90, missing=60, done=0, rows=0, failed_rows=0, seconds=0.0),
    },
)


def render_watch(polls: list[list[RunningSweep]], *, terminal: bool) -> tuple[str, list[float]]:
    """Show successive polls of running sweeps; return the console's output, and the seconds waited between polls."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140, highlight=False)
    waited: list[float] = []
    watch(console, lambda: polls.pop(0), waited.append)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), waited


def test_without_a_terminal_each_poll_prints_a_line_per_stage() -> None:
    text, waited = render_watch(
        [[RunningSweep(RUNNING_SWEEP, 1.0)], [RunningSweep(RUNNING_SWEEP, 1.0)], []], terminal=False
    )
    line = "20261123-010203-000000 answers:vqa: 15/60, 8.0 images/s, 1:30 left, 700 calls, 2 failed rows"
    assert (
        text.splitlines()
        == [line, "20261123-010203-000000 scores: 0/60, - images/s, - left, 0 calls, 0 failed rows"] * 2
    )
    assert len(waited) == 2 and "\x1b" not in text


def test_on_a_terminal_the_view_is_redrawn_in_place_and_names_silent_sweeps() -> None:
    text, _ = render_watch([[RunningSweep(RUNNING_SWEEP, 1.0)], [RunningSweep(RUNNING_SWEEP, 95.0)], []], terminal=True)
    assert "small: 20261123-010203-000000 on node7" in text and "silent for 1:35" in text
    assert "15/60" in text and "Ctrl-C ends this view; the sweeps go on" in text and "\x1b[2K" in text


@pytest.mark.parametrize("stop, code, said", [(KeyboardInterrupt, 0, ""), (JobTerminated, 143, "stopped watching\n")])
def test_ctrl_c_ends_the_view_cleanly_without_a_message_about_a_sweep(
    stop: type[KeyboardInterrupt], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_stop(console: Console, poll: Callable[[], object], wait: object) -> None:
        poll()
        raise stop

    monkeypatch.setattr(status, "watch", raise_stop)
    open_store_at(tmp_path).check()  # creates the store
    assert run("status", f"store={tmp_path}", "--watch") == FinishedJob(code, "", said)


def test_status_reports_the_first_sweep_while_it_works_and_after_it_was_killed_or_stopped(
    tmp_path: Path,
) -> None:
    """Status also reports the number of cells; it omits a killed sweep once another sweep has completed its run."""
    bench, store = write_benchmark(tmp_path / "bench", ["atlas", "flint"], count=120), tmp_path / "store"
    given = [*UNJUDGED_OPTIONS, *SMALL_OPTIONS, "metric=[edge_density]", "benchmark.name=small", f"store={store}"]
    given += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images"]
    process = subprocess.Popen([sys.executable, "-m", "jobs.sweep", *given], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert wait_until(lambda: any(store.glob("image_statistics/*/*/*.parquet")))
    process.send_signal(signal.SIGSTOP)
    try:
        working = run_for_output("status", f"store={store}")
    finally:
        process.kill()
        process.wait()
    assert "small, running on" in working and "of 120 cells committed; --watch follows it" in working
    killed = run_for_output("status", f"store={store}")
    assert "small, was killed, last seen" in killed and "run the same command to continue" in killed
    assert "no runs yet" not in working + killed and "no sweep is running" in run_for_output(
        "status", f"store={store}", "--watch"
    )
    for sign in (store / "sweeps").iterdir():
        sign.rename(tmp_path / sign.name)
    count = sum(1 for cell in store.glob("image_statistics/*/*/*.parquet") if ".draft" not in cell.name)
    assert f"no runs yet, and {count} committed cells; run the same command to continue" in run_for_output(
        "status", f"store={store}"
    )
    for sign in tmp_path.glob("*.json"):
        sign.rename(store / "sweeps" / sign.name)
    run_for_output("sweep", *given)
    assert "killed" not in run_for_output("status", f"store={store}")


def test_a_sweep_reports_the_number_of_computed_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = write_benchmark(tmp_path / "bench", ["atlas"])
    planned = plan_bench(bench, tmp_path / "store", "metric=[edge_density]")
    seen: list[object] = []
    monkeypatch.setattr("plumbline.pipelines.maintenance.running_sweeps.RENEW_INTERVAL", 0.01)
    with register_sweep(planned, seen.append, run="mine") as (_, watch):
        events = [
            CellsExpected("image_statistics", cells=2, calls=0),
            ShardStarted("image_statistics", at=1.0),
            ShardFinished("image_statistics", cells=1, rows=4, failed_rows=0, at=3.0),
        ]
        for event in events:
            watch(event)
        said: list[StageState] = []
        while not any(state.done for state in said):  # the sweep rewrites its file continually
            said = [sweep.status.stages["image_statistics"] for sweep in list_running_sweeps(planned.store, 0.0)]
    assert ([state.seconds_left for state in said], seen) == ([2.0], events)
    assert not list_running_sweeps(planned.store, 0.0)
    (tmp_path / "store/sweeps/odd.json").write_text('{"stages": 7}')
    assert not list_running_sweeps(planned.store, 0.0)


@pytest.mark.parametrize("rights", [0o2775, 0o2755])
def test_everyone_who_may_write_to_a_stores_folder_may_write_to_a_sweeps_files(rights: int, tmp_path: Path) -> None:
    """Despite the usual umask, files have the group permissions of the folder, even if they are linked or replaced."""
    bench = Bench(tmp_path, "metric=[edge_density]")
    store = Path(bench.store.place.url)
    store.mkdir()
    store.chmod(rights)
    before = os.umask(0o022)
    try:
        assert bench.run().code == 0
        bench.write("flint", read_image_rows("ember", 8))
        assert bench.run().code == 0
    finally:
        os.umask(before)
    found = [
        path for path in store.rglob("*") if bool(path.stat().st_mode & stat.S_IWGRP) != bool(rights & stat.S_IWGRP)
    ]
    assert found == [] and len(list(store.rglob("*"))) > 40


def test_folders_that_several_writers_make_at_once_are_writable_by_the_group(tmp_path: Path) -> None:
    """A thread may write to a folder at the moment when another thread creates it."""
    tmp_path.chmod(0o2775)
    before = os.umask(0o022)
    try:
        with ThreadPoolExecutor(8) as pool:
            for folder in range(150):
                start = threading.Barrier(8)

                def write(number: int, folder: int = folder, start: threading.Barrier = start) -> None:
                    start.wait()
                    StorageConfig().locate(f"{tmp_path}/{folder}/a/b/{number}", writable=True).write(b"content")

                list(pool.map(write, range(8)))
    finally:
        os.umask(before)
    found = list(tmp_path.rglob("*"))
    assert [path for path in found if not path.stat().st_mode & stat.S_IWGRP] == [] and len(found) == 150 * (3 + 8)
