"""A job that is told to end, ends: with its own code, nothing left running, and all that was committed kept."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.bench_of import write_benchmark

ROOT = Path(__file__).parent.parent.parent


def processes_of(session: int) -> list[int]:
    """Live processes of a session, by /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def test_sigterm_ends_a_sweep_cleanly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    store, waiting = tmp_path / "store", threading.Event()
    bench = write_benchmark(tmp_path / "bench", count=64)
    command = [sys.executable, "-m", "jobs.sweep", "sweep=shapes", f"store={store}", "metric=[clipscore]"]
    command += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images", "shard_rows=4"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    while not list(store.glob("scores/*/*/*.parquet")):
        assert process.poll() is None, (tmp_path / "log").read_text()
        waiting.wait(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    printed = (tmp_path / "log").read_text()
    assert printed.rstrip().endswith("stopped; what was computed is kept, run the same command to go on"), printed
    assert "Traceback" not in printed
    for _ in range(200):
        if not processes_of(process.pid):
            break
        waiting.wait(0.1)
    assert processes_of(process.pid) == []

    kept = {path: path.stat().st_mtime_ns for path in store.glob("*/*/*/*.parquet")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
