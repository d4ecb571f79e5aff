"""A stopped job ends with its own exit code, leaves no processes running, and keeps all committed results."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from random import Random

import pandas as pd
import pytest

from plumbline.jobs.command import STOPPED_MESSAGE, run_job
from plumbline.jobs.sweep import COMMAND as SWEEP
from plumbline.operators.base.batches import notify_of_calls
from plumbline.pipelines.store.runs import find_newest_run, find_run, list_run_ids
from tests.bench_of import UNJUDGED_OPTIONS, write_benchmark
from tests.commands import FinishedJob, find_newest_run_folder, open_store_at, run
from tests.jobs.test_rerun import ScoredBench

ROOT = Path(__file__).parent.parent.parent
SWEEP_COMMAND = (sys.executable, "-m", "jobs.sweep")


def list_processes(session: int) -> list[int]:
    """Return the ids of a session's processes that have not ended, read from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def handle_ctrl_c() -> None:
    """Make this process react to Ctrl-C, even if the tests run in the background, where shells turn this off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_a_sweep_on_ray_cleanly_and_the_next_run_continues(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM is sent to the job only, and Ctrl-C to all processes of its terminal."""
    store, waiting = tmp_path / "store", threading.Event()
    bench = write_benchmark(tmp_path / "bench", count=64)
    given = [*UNJUDGED_OPTIONS, f"store={store}", "metric=[edge_density]"]
    given += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images", "shard_rows=4"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*SWEEP_COMMAND, *given, "cluster=local"],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=handle_ctrl_c,
        )
    while not list(store.glob("scores/*/*/*.parquet")):
        assert process.poll() is None, (tmp_path / "log").read_text()
        waiting.wait(0.1)
    stop = process.send_signal if number == signal.SIGTERM else partial(os.killpg, process.pid)
    stop(number)
    assert process.wait(timeout=120) == 128 + number
    printed = (tmp_path / "log").read_text()
    assert printed.rstrip().splitlines()[-2:] == ["stopping", STOPPED_MESSAGE], printed
    assert "Traceback" not in printed
    for _ in range(200):
        if not list_processes(process.pid):
            break
        waiting.wait(0.1)
    assert list_processes(process.pid) == []

    kept = {path: path.stat().st_mtime_ns for path in store.glob("*/*/*/*.parquet")}
    assert run("sweep", *given).code == 0
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


@pytest.mark.parametrize("number, metric", [(signal.SIGINT, "vqascore"), (signal.SIGTERM, "tifa")])
def test_a_stop_in_the_middle_of_a_shard_keeps_complete_rows_and_repeats_no_call(
    number: signal.Signals, metric: str, tmp_path: Path
) -> None:
    """The signal can arrive at any call for one shard.

    The next command makes the remaining calls and gets the same scores.
    """
    bench, batch = write_benchmark(tmp_path / "bench", ["atlas"], count=24), 3
    given = [
        *UNJUDGED_OPTIONS,
        f"metric=[{metric}]",
        f"models.vqa.image_batch={batch}",
        "cluster=here",
        "shard_rows=24",
    ]
    given += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images"]
    handle_ctrl_c()

    def sweep(name: str, stop_at: int | None = None) -> tuple[FinishedJob, int]:
        """Run the sweep, with a signal during call `stop_at`; return its result and the number of answered calls."""
        answered = 0

        def note(made: int) -> None:
            nonlocal answered
            if stop_at is not None and answered < stop_at <= answered + made:
                signal.raise_signal(number)
            answered += made

        with notify_of_calls(note):
            return run("sweep", *given, f"store={tmp_path}/{name}"), answered

    undisturbed, calls = sweep("undisturbed")
    assert undisturbed.code == 0
    ended, before = sweep("store", Random(f"{metric} {number}").randrange(1, calls))
    assert (ended.code, ended.err.splitlines()) == (128 + number, ["stopping", STOPPED_MESSAGE])
    again, after = sweep("store")
    assert again.code == 0 and 0 < after < calls
    assert calls <= before + after <= calls + batch, "only images without a reply may be encoded again"
    pd.testing.assert_frame_equal(read_scores(tmp_path / "store"), read_scores(tmp_path / "undisturbed"))


@pytest.mark.slow
def test_a_stop_in_the_middle_of_a_shard_keeps_complete_rows_on_ray_too(tmp_path: Path) -> None:
    """SIGTERM arrives when the only worker is ready; the driver stops the worker when the worker next reports."""
    bench, waiting, log = write_benchmark(tmp_path / "bench", ["atlas"], count=128), threading.Event(), tmp_path / "log"
    store = open_store_at(tmp_path / "store")
    given = [*UNJUDGED_OPTIONS, f"store={store.place.url}", "metric=[tifa]", "shard_rows=128"]
    given += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images"]
    with log.open("w") as printed:
        slowly = ["models.vqa.image_batch=1", "models.vqa.pair_batch=1"]
        words = [*given, *slowly, "cluster=local", "log.format=text"]
        process = subprocess.Popen([*SWEEP_COMMAND, *words], cwd=ROOT, stdout=printed, stderr=printed)
    while not re.search("answers:vqa.*a worker is ready", log.read_text()):
        assert process.poll() is None, log.read_text()
        waiting.wait(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM, log.read_text()
    (draft,) = store.files("answers")
    kept = sum(row["error"] is None for row in store.read_table(draft).to_pylist())
    assert 0 < kept < 128, log.read_text()
    assert run("sweep", *given, "cluster=here").code == 0
    manifest = json.loads((find_newest_run_folder(tmp_path / "store") / "manifest.json").read_text())
    assert manifest["counts"]["rows_kept"] == kept


def read_scores(store: Path) -> pd.DataFrame:
    return pd.read_parquet(find_newest_run_folder(store) / "scores.parquet")


def test_a_sweep_that_ends_before_its_report_leaves_the_newest_run_unchanged_and_is_not_repeated(
    tmp_path: Path,
) -> None:
    sweep, waiting = ScoredBench(tmp_path, "sweep=shapes"), threading.Event()  # the job judges before it reports
    assert sweep.run().code == 0
    first = find_newest_run(sweep.store)
    sweep.change("relabelled")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*SWEEP_COMMAND, *sweep.list_arguments()], cwd=ROOT, stdout=log, stderr=log)
    while len(list(sweep.runs.glob("*/manifest.json"))) < 2:
        assert process.poll() is None, (tmp_path / "log").read_text()
        waiting.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM and "Traceback" not in (tmp_path / "log").read_text()
    (left,) = set(list_run_ids(sweep.store)) - {first}
    assert not sweep.store.exists(f"runs/{left}/report.html"), "the sweep should have ended before its report"
    assert find_run(sweep.store, "latest") == first == (sweep.store.read_text("runs/latest") or "").strip()
    code, printed, _ = sweep.run()
    assert code == 0 and f"nothing changed since run {left}" in printed
    assert find_run(sweep.store, "latest") == left and sweep.store.exists(f"runs/{left}/report.html")


def test_a_sweep_that_cannot_write_its_report_fails_and_leaves_the_newest_run_unchanged(
    tmp_path: Path,
) -> None:
    sweep = ScoredBench(tmp_path)
    assert sweep.run().code == 0
    first = find_newest_run(sweep.store)
    sweep.change("relabelled")

    def limit() -> None:
        """Limit file sizes so that a report's tables can be written but its page cannot, as on a full disk."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    done = subprocess.run(
        [*SWEEP_COMMAND, *sweep.list_arguments()], cwd=ROOT, capture_output=True, text=True, preexec_fn=limit
    )
    (left,) = set(list_run_ids(sweep.store)) - {first}
    printed = " ".join(done.stdout.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    later = re.search(r"no report: .* write it later with plumbline report (.*)$", done.stdout, re.MULTILINE)
    assert later and f"run={left}" in later[1], printed
    assert printed.endswith(f"run {left}, exit code 1: the report could not be made")
    assert find_newest_run(sweep.store) == first
    assert run("report", *shlex.split(later[1])).code == 0
    assert find_newest_run(sweep.store) == left


def wait_for_timer(timer: threading.Thread, config: object) -> int:
    """Run as a job that ends once the timer's thread has ended, and return the exit code 0."""
    timer.join()
    return 0


def test_a_stop_while_the_command_line_is_read_ends_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The job ends whenever the signal arrives, even if Hydra or OmegaConf would turn it into another error."""
    sent, early = Random(7), list[int]()
    for _ in range(20):
        signal.signal(
            signal.SIGTERM, lambda signum, frame: early.append(signum)
        )  # the signal may precede the job on a busy machine
        timer = threading.Timer(sent.uniform(0, 0.1), os.kill, [os.getpid(), signal.SIGTERM])
        timer.start()
        code = run_job(SWEEP, partial(wait_for_timer, timer), ["sweep=shapes", "metric=[vqascore]"])
        assert code == 143 or (early and early.pop()), capsys.readouterr()
