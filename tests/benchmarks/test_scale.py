"""Planning over many committed cells stays within its limits, and memory does not grow with the number of rows."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.base import schemas
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.base.storage import Entry
from plumbline.pipelines.maintenance.running_sweeps import DELETION_LEASE_NAME
from plumbline.pipelines.nightly.outcome import NightOutcome, get_outcome_path
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.store.lease import LEASES_FOLDER
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.results import Results
from plumbline.pipelines.sweeps.writing import write_run
from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.benchmarks.size import (
    HERE_OPTIONS,
    ROOT,
    TINY,
    choose_size,
    expect,
    list_one_row_arguments,
    run_module,
    start_fresh_process,
)

GENERATORS = ("atlas", "flint")
FILES_PER_GENERATOR, SHARDS_PER_FILE = choose_size((250, 500), (10, 2))
"""Files per generator and shards per file: with four cells per shard, there are over a million cells."""
MAX_PLANNING_SECONDS = 60
MAX_PLANNING_MEGABYTES = 1_000
MAX_NIGHT_SECONDS = 10
RUN_ID = "2026-01-02"
"""Id of the earlier run that a nightly sweep finds."""
ROWS_PER_FILE, N_COPIES = choose_size((125, 80), (4, 1))
"""Rows per file and number of files in the small sweep; the large sweep has ten times as many files."""
MAX_GROWTH = 1.25
"""Maximum growth of memory when the number of rows grows tenfold."""


def write_many_shards(folder: Path, files: int) -> list[str]:
    """Write `files` files per generator, with one row per shard; return the arguments for a sweep over them."""
    write_rows(folder / "bench/prompts.parquet", read_prompt_rows(8))
    row = {**read_image_rows("atlas", 1)[0], "image": b""}
    for generator in GENERATORS:
        for file in range(files):
            records = [{**row, "image_id": f"{generator}{file}-{n}"} for n in range(SHARDS_PER_FILE)]
            write_rows(folder / f"bench/images/{generator}/{file:05d}.parquet", records, row_group=1)
    return list_one_row_arguments(str(folder))


def plan_overrides(overrides: Sequence[str]) -> PlannedSweep:
    return plan_sweep(read_config(load_values(get_command("sweep"), overrides), SweepConfig))


def commit_every_cell(sweep: PlannedSweep, store: Path) -> None:
    """Create a file for each cell; a plan does not read the content of cells."""
    for cell in sweep.plan.cells:
        path = store / cell.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


class PlanningCost(NamedTuple):
    cells: int
    listed: list[str]
    """Folders of the store that were listed, one entry per listing."""
    seconds: float
    """CPU seconds."""
    megabytes: float
    """Peak resident memory of the process, in MB."""


def measure_planning(overrides: Sequence[str]) -> PlanningCost:
    """Return the cost of planning over committed cells, in a process that does nothing else."""
    listed = []
    below = Store._iterate_below

    def count_listing(self: Store, folder: str) -> Iterator[tuple[str, Entry]]:
        listed.append(folder)
        return below(self, folder)

    with patch.object(Store, "_iterate_below", count_listing):
        began = time.process_time()
        plan = plan_overrides(overrides).plan
        seconds = time.process_time() - began
    assert not plan.missing
    recipes = {cell.path.rsplit("/", 2)[0] for cell in plan.cells}
    assert recipes | {f"{LEASES_FOLDER}/{DELETION_LEASE_NAME}"} <= set(listed), "and the lease for deletion"
    return PlanningCost(len(plan.cells), listed, seconds, read_peak_memory(os.getpid()))


def test_planning_over_a_million_committed_cells_takes_less_than_a_minute_and_lists_no_folder_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = write_many_shards(tmp_path, FILES_PER_GENERATOR)
    commit_every_cell(plan_overrides(overrides), tmp_path / "store")
    with start_fresh_process() as fresh:
        again = fresh.submit(measure_planning, overrides).result()
    with capsys.disabled():
        print(
            f"\nplanning over {again.cells:,} committed cells: {again.seconds:.1f} s of CPU, {len(again.listed)} "
            f"listings, at most {again.megabytes:.0f} MB (target: below {MAX_PLANNING_MEGABYTES:,})"
        )
    assert again.cells > 4 * len(GENERATORS) * FILES_PER_GENERATOR * SHARDS_PER_FILE
    assert len(again.listed) == len(set(again.listed))
    expect(again.seconds < MAX_PLANNING_SECONDS)
    expect(again.megabytes < MAX_PLANNING_MEGABYTES)


def test_a_night_with_nothing_to_do_over_a_hundred_thousand_cells_takes_less_than_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = write_many_shards(tmp_path, FILES_PER_GENERATOR // 10)
    commit_every_cell(plan_overrides(overrides), tmp_path / "store")
    sweep = plan_overrides(overrides)
    write_existing_run(sweep)
    before = os.times()
    began = time.perf_counter()
    printed = run_module("jobs.nightly", *overrides)
    elapsed, after = time.perf_counter() - began, os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    with capsys.disabled():
        print(
            f"\na night with nothing to do over {len(sweep.plan.cells):,} cells: {seconds:.1f} s of CPU, "
            f"{elapsed:.1f} s of wall time"
        )
    assert f"nothing new since run {RUN_ID}" in printed, printed
    expect(len(sweep.plan.cells) > 100_000)
    expect(seconds < MAX_NIGHT_SECONDS)


def write_existing_run(sweep: PlannedSweep) -> None:
    """Write a run over the sweep's cells, with empty tables, as if a nightly job had already reported the run."""
    store, folder = sweep.store, f"runs/{RUN_ID}"
    store.write_table(f"{folder}/scores.parquet/00000-{'0' * 32}.parquet", schemas.SCORES.empty_table())
    store.write_table(f"{folder}/errors.parquet/00000.parquet", schemas.ERRORS.empty_table())
    store.write_page(f"{folder}/report.html", "")
    results = Results(
        store=store, path=f"{folder}/scores.parquet", parts=1, rows=0, n_null=0, n_truncated=0,
        summary=schemas.SUMMARY.empty_table(), failures=schemas.FAILURES.empty_table(),
    )  # fmt: skip
    began = datetime(2026, 1, 2, tzinfo=UTC)
    write_run(sweep, RUN_ID, results, {}, began=began, ending=Ending(), assert_lease=lambda: None)
    outcome = NightOutcome(
        run_id=RUN_ID, exit_code=0, benchmark="many", began="", ended="", report="", counts={"coverage": 1.0},
        compared_with=None, not_compared=None, regressions=(), improvements=(), sentences=(),
    )  # fmt: skip
    store.write_json(get_outcome_path(RUN_ID), outcome.to_json())


class PeakMemory(NamedTuple):
    """Peak resident memory in MB."""

    driver: float
    worker: float
    """Peak memory of the largest stage actor."""


def test_memory_stays_flat_while_rows_grow_tenfold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (measure_peaks(tmp_path / str(copies), copies) for copies in (N_COPIES, 10 * N_COPIES))
    with capsys.disabled():
        print(
            f"\n{N_COPIES * ROWS_PER_FILE:,} rows: driver {small.driver:.0f} MB, largest worker {small.worker:.0f} MB; "
            f"ten times the rows: driver {large.driver:.0f} MB, largest worker {large.worker:.0f} MB"
        )
    expect(large.driver < MAX_GROWTH * small.driver and large.worker < MAX_GROWTH * small.worker)


def measure_peaks(folder: Path, copies: int) -> PeakMemory:
    """Return the peak memory of a sweep with the tiny CLIP over `copies` copies of a generator's images."""
    write_rows(folder / "bench/prompts.parquet", read_prompt_rows(ROWS_PER_FILE))
    records = read_image_rows("atlas", ROWS_PER_FILE)
    for copy in range(copies):
        write_rows(folder / f"bench/images/atlas/{copy}.parquet", records, row_group=ROWS_PER_FILE)
    command = ["jobs.sweep", "sweep=shapes", f"store={folder}/store", "metric=[clipscore]", *HERE_OPTIONS]
    command += [f"benchmark.prompts={folder}/bench/prompts.parquet", f"benchmark.images={folder}/bench/images"]
    if TINY:
        run_module(*command)
        return PeakMemory(read_peak_memory(os.getpid()), 0.0)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    driver = worker = 0.0
    waiting = threading.Event()
    while process.poll() is None:
        waiting.wait(0.1)
        driver = max(driver, read_peak_memory(process.pid))
        worker = max([worker, *(read_peak_memory(pid) for pid in list_processes(process.pid, b"MapWorker"))])
    assert process.returncode == 0, (folder / "log").read_text()
    return PeakMemory(driver, worker)


def list_processes(session: int, mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            if fields and int(fields[3]) == session and mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def read_peak_memory(pid: int) -> float:
    """Return the peak resident memory of a process in MB, or 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peaks[0]) / 1024 if peaks else 0.0
