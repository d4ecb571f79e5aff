"""What grows with a sweep and what must not: planning over many committed cells, memory over many rows."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from pipelines.cells.store import Store
from pipelines.sweep import PlannedSweep, plan_sweep
from tests.bench_of import images, prompts, sweep_config, write_rows

GENERATORS = ("atlas", "flint")
FILES, SHARDS = 250, 500
"""Of each generator, and of each file; each shard has four cells: with those of the questions over a million."""
PLANNING_SECONDS = 60
ROOT = Path(__file__).parent.parent.parent
ROWS, COPIES = 125, 80
"""10,000 rows, and then ten times as many."""
FLAT = 1.25
"""The most that memory may grow by while rows grow tenfold."""


def planned(folder: Path, store: Path) -> PlannedSweep:
    return plan_sweep(sweep_config(folder, store, "metric=[vqascore,clipscore]", "shard_rows=1", "benchmark.name=many"))


def test_planning_over_a_million_committed_cells_takes_less_than_a_minute_and_one_listing_per_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "bench/prompts.parquet", prompts(8))
    row = {**images("atlas", 1)[0], "image": b""}
    for generator in GENERATORS:
        for file in range(FILES):
            rows = [{**row, "image_id": f"{generator}{file}-{n}"} for n in range(SHARDS)]
            write_rows(tmp_path / f"bench/images/{generator}/{file:05d}.parquet", rows, row_group=1)
    first = planned(tmp_path / "bench", tmp_path / "store")
    for cell in first.plan.cells:
        path = tmp_path / "store" / cell.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    del first

    listed = []
    listing = Store.listing

    def counted(self: Store, folder: str) -> dict[str, float]:
        listed.append(folder)
        return listing(self, folder)

    monkeypatch.setattr(Store, "listing", counted)
    began = time.process_time()
    again = planned(tmp_path / "bench", tmp_path / "store")
    seconds = time.process_time() - began
    with capsys.disabled():
        print(
            f"\nplanning over {len(again.plan.cells):,} committed cells: {seconds:.1f} s of CPU, {len(listed)} "
            f"listings, at most {peak_memory(os.getpid()):.0f} MB (below 1,000 wanted)"
        )
    assert len(again.plan.cells) > 4 * len(GENERATORS) * FILES * SHARDS and not again.plan.missing
    recipes = {cell.path.rsplit("/", 2)[0] for cell in again.plan.cells}
    assert len(listed) == len(recipes)
    assert seconds < PLANNING_SECONDS


class Peaks(NamedTuple):
    """Peak resident memory in MB."""

    driver: float
    worker: float
    """The largest of the stages' actors."""


def test_memory_stays_flat_while_rows_grow_tenfold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (peaks_of_a_sweep(tmp_path / str(copies), copies) for copies in (COPIES, 10 * COPIES))
    with capsys.disabled():
        print(
            f"\n{COPIES * ROWS:,} rows: driver {small.driver:.0f} MB, largest worker {small.worker:.0f} MB; "
            f"ten times the rows: driver {large.driver:.0f} MB, largest worker {large.worker:.0f} MB"
        )
    assert large.driver < FLAT * small.driver and large.worker < FLAT * small.worker


def peaks_of_a_sweep(folder: Path, copies: int) -> Peaks:
    """A sweep of the tiny CLIP over so many copies of a generator's images."""
    write_rows(folder / "bench/prompts.parquet", prompts(ROWS))
    rows = images("atlas", ROWS)
    for copy in range(copies):
        write_rows(folder / f"bench/images/atlas/{copy}.parquet", rows, row_group=ROWS)
    command = [sys.executable, "-m", "jobs.sweep", "sweep=shapes", f"store={folder}/store", "metric=[clipscore]"]
    command += [f"benchmark.prompts={folder}/bench/prompts.parquet", f"benchmark.images={folder}/bench/images"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    driver = worker = 0.0
    waiting = threading.Event()
    while process.poll() is None:
        waiting.wait(0.1)
        driver = max(driver, peak_memory(process.pid))
        worker = max([worker, *(peak_memory(pid) for pid in actors_of(process.pid))])
    assert process.returncode == 0, (folder / "log").read_text()
    return Peaks(driver, worker)


def actors_of(session: int) -> list[int]:
    """The stages' actors among the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            if fields and int(fields[3]) == session and b"MapWorker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def peak_memory(pid: int) -> float:
    """Peak resident memory of a process in MB; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peaks[0]) / 1024 if peaks else 0.0
