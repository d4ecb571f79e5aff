"""Measures each step and process of a sweep with many made-up scores, with one worker and with two.

python -m tests.benchmarks.sweep_table FOLDER PROMPTS GENERATORS METRICS

It plans, commits cells, gathers results and writes a report with two workers, then gathers and writes again with one.
The folder gets prompts, image tables and a store with about 80 bytes per row, and is deleted at the end.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.scripted_sweep import write_images, write_prompts
from tests.benchmarks.size import ROOT

SHARD_ROWS = 1_000
POLL_SECONDS = 1.0
"""Seconds between two polls of the processes."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STEP_LABELS = {"plan": "plan", "scripted": "compute", "results": "results", "written": "manifest", "report": "report"}
"""Names of the steps in the table, keyed by their names in scripted_sweep.py."""


class WorkerProcess(NamedTuple):
    """A worker process as reported by /proc."""

    pid: int
    cpu: float
    """CPU seconds."""
    peak: float
    """Peak memory in MB."""


class ProcessSnapshot(NamedTuple):
    """The processes of a sweep at one moment."""

    at: float
    cpu: Mapping[int, float]
    """CPU seconds of each worker so far, keyed by process id."""


class MeasuredSweep(NamedTuple):
    measured: dict[str, Any]
    """The JSON object that scripted_sweep.py prints."""
    snapshots: list[ProcessSnapshot]
    """Snapshots of the sweep's worker processes, one per POLL_SECONDS."""
    worker: float
    """Peak memory of the largest worker, in MB."""

    def compute_wall_seconds(self, step: str) -> float:
        began, ended = self.measured["moments"][step]
        return float(ended - began)

    def compute_worker_seconds(self, step: str) -> float:
        began, ended = self.measured["moments"][step]
        return self._sum_worker_seconds(ended + POLL_SECONDS) - self._sum_worker_seconds(began)

    def _sum_worker_seconds(self, until: float) -> float:
        latest: dict[int, float] = {}
        for look in self.snapshots:
            if look.at <= until:
                latest.update(look.cpu)
        return sum(latest.values())


def list_workers(sweep: int) -> list[WorkerProcess]:
    """Return the Ray workers that descend from the process with the id `sweep`."""
    parents = {pid: parent for pid in Path("/proc").glob("[0-9]*") if (parent := _read_parent(pid)) is not None}
    below, found = {sweep}, -1
    while found < len(below):
        found = len(below)
        below |= {int(pid.name) for pid, parent in parents.items() if parent in below}
    seen = (_read_worker(pid) for pid in parents if int(pid.name) in below)
    return [process for process in seen if process is not None]


def _read_parent(process: Path) -> int | None:
    with suppress(OSError):  # it has ended
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def _read_worker(process: Path) -> WorkerProcess | None:
    """Read a process from its folder in /proc; return None if it has ended or is not a Ray worker."""
    with suppress(OSError):
        if (process / "cmdline").read_text().startswith("ray::"):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            status = (process / "status").read_text().splitlines()
            peak = next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")), 0.0)
            return WorkerProcess(int(process.name), (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, peak)
    return None


def run_sweep(folder: Path, metrics: int, workers: int) -> MeasuredSweep:
    command = [sys.executable, "-m", "tests.benchmarks.scripted_sweep", str(folder), str(folder / "store")]
    said = folder / "said"
    snapshots: list[ProcessSnapshot] = []
    largest = 0.0
    with said.open("w") as output:
        sweep = subprocess.Popen(
            [*command, str(metrics), str(SHARD_ROWS), str(workers)],
            cwd=ROOT, stdout=output, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        while sweep.poll() is None:
            own = list_workers(sweep.pid)
            snapshots.append(ProcessSnapshot(time.time(), {process.pid: process.cpu for process in own}))
            largest = max([largest, *(process.peak for process in own)])
            with suppress(subprocess.TimeoutExpired):
                sweep.wait(POLL_SECONDS)
    assert sweep.returncode == 0, said.read_text()[-3000:]
    return MeasuredSweep(json.loads(said.read_text().splitlines()[-1]), snapshots, largest)


def print_rows(rows: int, workers: int, sweep: MeasuredSweep) -> None:
    """Print each step of a sweep with `workers` workers over `rows` rows as a line of a table, then the peak memory."""
    for step, name in STEP_LABELS.items():
        driver, theirs = sweep.measured["seconds"].get(step, 0.0), sweep.compute_worker_seconds(step)
        share = driver / (driver + theirs)
        print(
            f"| {name} | {workers} | {sweep.compute_wall_seconds(step):,.1f} | {driver:,.1f} | "
            f"{theirs:,.1f} | {share:.0%} | {(driver + theirs) / rows * 1e6:.2f} |"
        )
    print(f"peak memory: driver {sweep.measured['peak']:,.0f} MB, largest worker {sweep.worker:,.0f} MB", flush=True)


def main(folder: Path, prompts: int, generators: int, metrics: int) -> None:
    write_prompts(folder, prompts, row_group=SHARD_ROWS)
    for number in range(generators):
        write_images(folder, f"generator-{number:02d}", prompts, row_group=SHARD_ROWS)
    rows = prompts * generators * metrics
    print(f"{rows:,} rows: {prompts:,} prompts x {generators} generators x {metrics} metrics")
    print("| step | workers | s | driver's CPU s | workers' CPU s | driver's share | CPU us per row |")
    print("|---|---|---|---|---|---|---|", flush=True)
    two = run_sweep(folder, metrics, 2)
    print_rows(rows, 2, two)
    for part in ("runs", "order", "latest"):
        shutil.rmtree(folder / "store" / part)
    one = run_sweep(folder, metrics, 1)
    print_rows(rows, 1, one)
    for step in ("results", "report"):
        ratio = one.compute_wall_seconds(step) / two.compute_wall_seconds(step)
        print(f"{step}: two workers are {ratio:.2f} times as fast as one")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
