"""Mapping a function over many items gives the same results, order and error messages in this process and on Ray."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.running.errors import RunnerError
from plumbline.pipelines.running.ordered_calls import ITEMS_PER_SLOT
from plumbline.pipelines.running.tasks import N_THREADS, TaskRunner, ThreadTaskRunner, open_tasks
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.store.store import Store
from tests.bench_of import Bench, read_image_rows, run_plan, save_scores

CLUSTER_CONFIG = ClusterConfig(driver_rows=10, max_attempts=2)


@pytest.fixture(scope="module", params=["here", "ray"])
def tasks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskRunner]:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    store = Store(StorageConfig().locate(str(tmp_path_factory.mktemp("store"))))
    with open_tasks(CLUSTER_CONFIG, store, rows=10 if request.param == "here" else 11) as tasks:
        assert isinstance(tasks, ThreadTaskRunner) == (request.param == "here")
        yield tasks


def multiply(factor: int, number: int) -> int:
    return factor * number


def refuse(place: str, number: int) -> int:
    if number == 3:
        raise SourceError(f"{place}, row 3: expected a number; write one")
    return number


def die_once(notes: Path, number: int) -> int:
    """Return the number, but end the process on the first call for each number, and on every call for 9."""
    note = notes / str(number)
    if number == 9 or not note.exists():
        note.write_text("died")
        os._exit(1)
    return number


def test_results_keep_the_order_of_the_items(tasks: TaskRunner) -> None:
    assert list(tasks.map(multiply, range(100), shared=3)) == list(range(0, 300, 3))
    assert list(tasks.map(multiply, [], shared=3)) == []


def test_items_are_only_consumed_when_needed(tasks: TaskRunner) -> None:
    taken = []
    results = tasks.map(multiply, (taken.append(number) or number for number in range(10_000)), shared=1)
    assert next(results) == 0
    results.close()
    assert len(taken) <= ITEMS_PER_SLOT * max(N_THREADS, os.cpu_count() or 1, 4) + 1


def test_an_error_for_the_user_is_raised_unchanged(tasks: TaskRunner) -> None:
    with pytest.raises(SourceError, match=r"^images\.parquet, row 3: expected a number; write one$"):
        list(tasks.map(refuse, range(10), shared="images.parquet"))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_task_whose_process_dies_is_repeated_up_to_a_limit(tmp_path: Path) -> None:
    with open_tasks(CLUSTER_CONFIG, Store(StorageConfig().locate(str(tmp_path))), rows=11) as tasks:
        assert list(tasks.map(die_once, range(3), shared=tmp_path)) == [0, 1, 2]
        with pytest.raises(RunnerError, match=r"^Ray failed \(WorkerCrashedError.*run the same command to continue$"):
            list(tasks.map(die_once, [9], shared=tmp_path))


def test_the_driver_handles_all_rows_if_ray_is_not_used(tmp_path: Path) -> None:
    cluster = ClusterConfig(executor="here", driver_rows=0)
    with open_tasks(cluster, Store(StorageConfig().locate(str(tmp_path))), rows=10**9) as tasks:
        assert isinstance(tasks, ThreadTaskRunner)
    assert not list(tmp_path.iterdir())


def sweep_for_tables(bench: Bench, *words: str) -> dict[str, bytes]:
    """Run a sweep; return the bytes of its tables (scores, errors, summary and usual scores), keyed by path."""
    run = Path(run_plan(bench.plan(*words)).folder)
    every = (path for name in ("scores", "errors", "summary", "usual_scores") for path in run.rglob(f"{name}.parquet*"))
    files = (file for path in every for file in ([path] if path.is_file() else path.iterdir()))
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.mark.usefixtures("ray_cluster")
def test_tables_made_on_ray_equal_the_drivers_byte_for_byte(tmp_path: Path) -> None:
    """Some rows failed, and one generator lacks images for some prompts."""
    bench = Bench(tmp_path, "metric=[clipscore,edge_density]", "max_failed=1")
    bench.write("flint", read_image_rows("flint", 5))
    planned = bench.plan()
    save_scores(planned, lambda generator, image: len(generator) / (1 + int(image["prompt_id"][-1], 16)))
    cell = planned.plan.scores["clipscore"][0]
    error = {"kind": "corrupt_image", "message": "the image does not decode", "retryable": False}
    failed = [{**row, "generator": cell.shard.group, "metric": "clipscore", "error": error}
              for row in read_shard(cell.shard, ("image_id", "prompt_id")).to_pylist()]  # fmt: skip
    planned.store.remove(cell.path)
    planned.store.save(planned.plan.make_cell(cell), rows.table(failed, schemas.ELEMENT_SCORES))
    other = bench.copy_to(tmp_path / "other")
    here, on_ray = sweep_for_tables(bench), sweep_for_tables(other, "cluster=local", "cluster.driver_rows=0")
    assert len(here) == 5 + 2 + 2 and here == on_ray
