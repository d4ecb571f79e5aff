"""Measures what a sweep costs the driver, and prints it as JSON. The scores are made up; everything else is real.

python -m tests.benchmarks.scripted_sweep FOLDER STORE [METRICS] [ROWS_OF_A_SHARD] [WORKERS]

Without WORKERS the sweep runs in this process alone, otherwise on Ray with that number of CPUs. sweep_table.py makes a
table of several sweeps.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.jobs import sweep as job
from plumbline.operators.base import schemas
from plumbline.pipelines.metaeval import metaeval
from plumbline.pipelines.report import report
from plumbline.pipelines.running.tasks import open_tasks
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.store.cells import Cell, Outcome, Shard
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps import computing, sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, list_inputs, plan_sweep_from_inputs
from plumbline.pipelines.sweeps.results import gather_results
from plumbline.pipelines.sweeps.writing import write_run
from tests.bench_of import make_sweep_config

ROW_GROUP_SIZE = 250
SKILLS = ("colour", "counting", "negation", "spatial")


def write_prompts(folder: Path, count: int, *, row_group: int = ROW_GROUP_SIZE) -> None:
    ids = [f"prompt-{number:06d}" for number in range(count)]
    table = {
        "prompt_id": ids,
        "text": [
            f"{number} cups of tea stand beside a red teapot on a table, number {number}" for number in range(count)
        ],
        "skills": [[SKILLS[number % 4], SKILLS[number % 3]] for number in range(count)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "prompts.parquet", row_group_size=row_group)


def write_images(folder: Path, generator: str, count: int, copies: int = 1, *, row_group: int = ROW_GROUP_SIZE) -> None:
    """Write `copies` rows for each of the first `count` prompts; the images are never read."""
    ids = [f"prompt-{number:06d}" for _ in range(copies) for number in range(count)]
    table = {
        "image_id": [f"{generator}-{number:07d}" for number in range(len(ids))],
        "prompt_id": ids,
        "image": [b""] * len(ids),
    }
    (folder / "images" / generator).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "images" / generator / "00000.parquet", row_group_size=row_group)


class MissingScores(NamedTuple):
    """A shard, and its scores cells that have not been committed yet."""

    shard: Shard
    cells: tuple[Cell, ...]


def commit_missing_scores(planned: PlannedSweep, report: object = None) -> dict[str, Outcome]:
    """Commit the missing scores cells with made-up scores; return each cell's outcome, keyed by the cell's path.

    The scores are random numbers with the cell's path as seed. `report` is ignored; a real sweep passes the
    function that shows its progress.
    """
    plan, expect = planned.plan, {cell for cells in planned.plan.scores.values() for cell in cells}
    cells_of = ((shard, tuple(cell for cell in cells if cell in expect and cell in plan.missing))
                for shard, cells in plan.images.of_shard.items())  # fmt: skip
    items = (MissingScores(shard, tuple(map(plan.make_cell, cells))) for shard, cells in cells_of if cells)
    rows = sum(cell.shard.rows for cell in expect & plan.missing)
    with open_tasks(planned.config.cluster, planned.store, rows=rows) as tasks:
        return {
            path: outcome
            for of_shard in tasks.map(commit_scores, items, shared=planned.store)
            for path, outcome in of_shard.items()
        }


def commit_scores(store: Store, missing: MissingScores) -> dict[str, Outcome]:
    """Commit the missing cells of one shard; return each cell's outcome, keyed by the cell's path."""
    ids = read_shard(missing.shard, ("image_id", "prompt_id"))
    return {cell.path: store.save(cell, _make_scores(cell, missing.shard, ids)) for cell in missing.cells}


def _make_scores(cell: Cell, shard: Shard, ids: pa.Table) -> pa.Table:
    drawn = np.random.default_rng(list(cell.path.encode()))
    generator = sum(shard.group.encode()) % 7
    columns = {
        "image_id": ids.column("image_id"),
        "prompt_id": ids.column("prompt_id"),
        "generator": pa.repeat(shard.group, len(ids)),
        "metric": pa.repeat(cell.metric, len(ids)),
        "score": drawn.normal(0.5 + 0.01 * generator, 0.1, len(ids)),
        "n_questions": pa.repeat(pa.scalar(1, pa.int32()), len(ids)),
        "truncated": pa.repeat(False, len(ids)),
    }
    schema = schemas.ELEMENT_SCORES
    absent = {field.name: pa.nulls(len(ids), field.type) for field in schema if field.name not in columns}
    return pa.table(columns | absent, schema=schema)


def wrap_with_timer(seconds: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call so that its CPU seconds over all threads are added to `seconds[name]`.

    CPU seconds vary less than wall time on a busy machine. Peak memory is recorded in `peaks`, and start and end in
    `moments`.
    """

    def time_call(*arguments: Any, **options: Any) -> Any:
        began, wall = time.process_time(), time.time()
        try:
            return call(*arguments, **options)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - began
            peaks[name] = read_peak_megabytes()
            moments[name] = (wall, time.time())

    return time_call


peaks: dict[str, float] = {}
"""Peak memory of this process in MB until the end of each step, keyed by the step's name."""
moments: dict[str, tuple[float, float]] = {}
"""Start and end of each step in seconds since 1970, keyed by the step's name."""


def read_peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def measure(
    folder: str, store: str, metrics: str = "1", shard_rows: str = str(ROW_GROUP_SIZE), workers: str = "0"
) -> dict[str, Any]:
    """Plan, score with these metrics, gather and report; return CPU seconds by step, and peak memory in MB."""
    read: list[str] = []
    read_cell = Store.read

    def read_and_record(self: Store, path: str, **options: Any) -> pa.Table:
        read.append(path)
        return read_cell(self, path, **options)

    seconds: dict[str, float] = {}
    replaced = (
        (Store, "read", read_and_record),
        (computing, "compute_missing_cells", wrap_with_timer(seconds, "scripted", commit_missing_scores)),
        (sweep, "gather_results", wrap_with_timer(seconds, "results", gather_results)),
        (sweep, "write_run", wrap_with_timer(seconds, "written", write_run)),
        (job, "list_inputs", wrap_with_timer(seconds, "plan", list_inputs)),
        (job, "plan_sweep_from_inputs", wrap_with_timer(seconds, "plan", plan_sweep_from_inputs)),
        (metaeval, "judge_run", wrap_with_timer(seconds, "agreement", metaeval.judge_run)),
        (report, "write_report", wrap_with_timer(seconds, "report", report.write_report)),
    )
    more = [f"+metrics.clipscore_{number}={{kind: clipscore, model: clip}}" for number in range(2, int(metrics) + 1)]
    on_ray = ["cluster=local", f"cluster.num_cpus={workers}", "cluster.driver_rows=0"] if int(workers) else []
    words = ["metric=[clipscore]", *more, f"shard_rows={shard_rows}", "benchmark.name=large", *on_ray]
    config = make_sweep_config(folder, store, *words)
    with ExitStack() as stack:
        for place, name, call in replaced:
            stack.enter_context(patch.object(place, name, call))
        code = job.main(config)
    return {
        "exit_code": code, "cells_read": len(read), "seconds": seconds, "moments": moments, "peaks": peaks,
        "peak": read_peak_megabytes(),
    }  # fmt: skip


if __name__ == "__main__":
    measured = measure(*sys.argv[1:])
    print("\n" + json.dumps(measured))
