"""A plan takes the cells of large folders from the newest run's index, with the same result as listing the folders."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.store.runs import list_run_ids
from plumbline.pipelines.store.store import FILES_PER_PAGE
from tests.bench_of import Bench, read_run_tables, run_plan
from tests.pipelines.maintenance.test_garbage import collect_garbage_now

ONE_GENERATOR, TWO_GENERATORS, THREE_GENERATORS = (
    f"benchmark.generators=[{','.join(('atlas', 'cobalt', 'flint')[:count])}]" for count in (1, 2, 3)
)


@pytest.fixture(scope="module")
def swept_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a benchmark of three generators, after one sweep over the first and one over the first two.

    Each recipe's folder also contains a folder `dropped`, with more files than fit on one page of a listing.
    """
    words = ("metric=[edge_density]",)
    bench = Bench(tmp_path_factory.mktemp("made"), *words, generators=("atlas", "cobalt", "flint"))
    run_plan(bench.plan(ONE_GENERATOR))
    planned = bench.plan(TWO_GENERATORS)
    run_plan(planned)
    for recipe in planned.plan.images.recipes:
        folder = Path(bench.store.place.url) / recipe.folder / "dropped"
        folder.mkdir()
        for number in range(FILES_PER_PAGE + 1):
            (folder / f"old-{number:08x}.parquet").touch()
    return bench


@pytest.fixture
def bench(swept_bench: Bench, tmp_path: Path) -> Bench:
    """Return a copy of the swept benchmark and its store; files keep their modification times."""
    bench = swept_bench.copy_to(tmp_path)
    for path in Path(swept_bench.store.place.url).rglob("*"):
        state = path.stat()
        os.utime(Path(bench.store.place.url) / path.relative_to(swept_bench.store.place.url), ns=(0, state.st_mtime_ns))
    return bench


def find_index(bench: Bench, run: int) -> Path:
    return bench.runs / list_run_ids(bench.store)[run] / "cells.parquet"


def rewrite(bench: Bench, change: Callable[[pa.Table], pa.Table]) -> None:
    path = f"runs/{list_run_ids(bench.store)[-1]}/cells.parquet"
    bench.store.write_table(path, change(bench.store.read_table(path)))


def change_store(cells: pa.Table) -> pa.Table:
    paths = [path.replace("/atlas/", "/zircon/") for path in cells.column("path").to_pylist()]
    return cells.set_column(0, "path", pa.array(paths))


INDEX_DAMAGES: dict[str, Callable[[Bench], Any]] = {
    "whole": lambda bench: None,
    "removed": lambda bench: find_index(bench, -1).unlink(),
    "no run": lambda bench: shutil.rmtree(bench.runs),
    "truncated": lambda bench: find_index(bench, -1).write_bytes(find_index(bench, -1).read_bytes()[:-40]),
    "rolled back": lambda bench: shutil.copyfile(find_index(bench, 0), find_index(bench, -1)),
    "foreign": lambda bench: rewrite(bench, change_store),
    "newer": lambda bench: rewrite(bench, lambda cells: cells.rename_columns([f"{c}_2" for c in cells.column_names])),
}


def list_missing(plan: Plan) -> set[str]:
    return {cell.path for cell in plan.missing}


@pytest.mark.parametrize("harm", INDEX_DAMAGES)
def test_a_plan_with_any_damaged_index_equals_a_plan_by_listing(harm: str, bench: Bench) -> None:
    INDEX_DAMAGES[harm](bench)
    assert list_missing(bench.plan(TWO_GENERATORS).plan) == set()
    plan = bench.plan(THREE_GENERATORS).plan
    assert list_missing(plan) == {cell.path for cell in plan.cells if cell.shard.group == "flint"} != set()


def test_lost_cells_that_the_index_names_are_noticed_when_they_are_read(bench: Bench) -> None:
    """Neither the lost scores nor the lost cells that they are computed from are noticed while the sweep is planned."""
    for stage in ("scores", "image_statistics"):
        for folder in (Path(bench.store.place.url) / stage).glob("*/atlas"):
            shutil.rmtree(folder)
    assert list_missing(bench.plan(TWO_GENERATORS).plan) == set(), "the index is trusted"
    done = run_plan(bench.plan(THREE_GENERATORS))
    assert (done.exit_code, done.results.n_null, done.results.rows) == (0, 0, 24)
    assert all(bench.store.exists(cell.path) for cell in bench.plan(THREE_GENERATORS).plan.cells)
    shutil.rmtree(bench.runs)
    assert list_missing(bench.plan(THREE_GENERATORS).plan) == set()


def test_cells_removed_by_garbage_collection_are_planned_again(bench: Bench) -> None:
    planned = bench.plan(TWO_GENERATORS)
    shutil.rmtree(bench.runs / list_run_ids(bench.store)[-1])
    assert collect_garbage_now(Path(bench.store.place.url)).free
    assert {path.split("/")[2] for path in list_missing(bench.plan(TWO_GENERATORS).plan)} == {"cobalt"}
    done = run_plan(planned)
    assert (done.computed, done.results.n_null) == (4, 0), "the sweep is planned again when it starts"


def test_two_sweeps_planned_at_the_same_time_both_have_all_rows(bench: Bench) -> None:
    one, other = bench.plan(THREE_GENERATORS), bench.plan(THREE_GENERATORS)
    first, second = read_run_tables(run_plan(one)), read_run_tables(run_plan(other))
    assert first["summary"].equals(second["summary"]) and len(second["scores"]) == 24
    assert not bench.plan(THREE_GENERATORS).plan.missing


def test_a_night_with_nothing_new_opens_no_source(bench: Bench, tmp_path: Path) -> None:
    """A damaged file is only noticed once its size or modification time has changed."""
    bench.folder = Path(shutil.copytree(bench.folder, tmp_path / "bench"))
    assert bench.run(TWO_GENERATORS).code == 0
    image = bench.folder / "images/atlas/00000.parquet"
    state, content = image.stat(), image.read_bytes()
    image.write_bytes(bytes(len(content)))
    os.utime(image, ns=(state.st_atime_ns, state.st_mtime_ns))
    code, printed, _ = bench.run(TWO_GENERATORS)
    assert code == 0 and "nothing changed since run" in printed and "0 cells to compute" in printed
    image.touch()
    code, printed, _ = bench.run(TWO_GENERATORS)
    assert code == 1 and "nothing changed" not in printed and "not a readable Parquet file" in printed
