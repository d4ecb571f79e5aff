"""Image files that are in the store's cache are not opened, and a damaged cache does not change a plan."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.rewards.scored_images import gather_scores
from plumbline.pipelines.sources.image_file_cache import CACHE_SCHEMA
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import (
    CAPTIONED_OPTIONS,
    Bench,
    corrupt,
    list_captioned_images,
    make_score_config,
    read_image_rows,
    run_plan,
    write_benchmark,
    write_rows,
)

METRIC_OPTION = "metric=[edge_density]"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a benchmark that has been planned once."""
    bench = Bench(tmp_path, METRIC_OPTION)
    bench.plan()
    return bench


def list_keys(plan: Plan) -> set[str]:
    return {cell.key for cell in plan.cells}


def find_cache_file(bench: Bench, generator: str = "atlas") -> Path:
    (path,) = Path(bench.store.place.url).glob(f"sources/*/*/{generator}.parquet")
    return path


def test_only_new_and_changed_files_are_opened(bench: Bench) -> None:
    before = bench.plan()
    corrupt(bench.folder / "images/atlas/00000.parquet")
    bench.write("flint", read_image_rows("flint", 4))
    bench.write("flint", read_image_rows("flint", 8), "00001")
    after = bench.plan()
    assert not after.sources.broken and len(after.sources.image_shards) == 2 + 1 + 2
    both = list_keys(before.plan) & list_keys(after.plan)
    assert both == {cell.key for cell in before.plan.cells if cell.shard.group == "atlas"} != set()
    assert list_keys(bench.plan("benchmark.limit=3").plan), "the ids of single rows are remembered as well"


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: shutil.copyfile(path.parent / "flint.parquet", path),
        lambda path: pq.write_table(CACHE_SCHEMA.empty_table().append_column("colour", [[]]), path),
    ],
    ids=["removed", "truncated", "of other files", "newer"],
)
def test_files_without_a_valid_cache_entry_are_opened(harm: Callable[[Path], object], bench: Bench) -> None:
    before, path = list_keys(bench.plan().plan), find_cache_file(bench)
    whole = path.read_bytes()
    harm(path)
    assert list_keys(bench.plan().plan) == before
    assert find_cache_file(bench).read_bytes() == whole


def test_an_older_cache_is_not_used_for_files_that_have_changed_since(bench: Bench) -> None:
    older = find_cache_file(bench).read_bytes()
    bench.write("atlas", read_image_rows("atlas", 4))
    now = list_keys(bench.plan().plan)
    find_cache_file(bench).write_bytes(older)
    assert list_keys(bench.plan().plan) == now


def test_prompts_in_the_images_rows_are_cached(tmp_path: Path) -> None:
    file = tmp_path / "images/atlas/00000.parquet"
    write_rows(file, list_captioned_images("atlas", 8))
    config = make_score_config(
        tmp_path / "images", tmp_path / "store", METRIC_OPTION, *CAPTIONED_OPTIONS, "benchmark.columns.generator=no"
    )
    before = plan_sweep(config)
    corrupt(file)
    after = plan_sweep(config)
    assert list_keys(after.plan) == list_keys(before.plan) != set() and after.sources.prompts.equals(
        before.sources.prompts
    )


def test_benchmarks_with_the_same_generators_have_separate_caches(bench: Bench, tmp_path: Path) -> None:
    other = write_benchmark(tmp_path / "other", count=4)
    bench.plan("benchmark.name=other", f"benchmark.images={other}/images")
    corrupt(bench.folder / "images/atlas/00000.parquet")
    assert not bench.plan().sources.broken


@pytest.mark.parametrize("limit", ["null", "4"])
def test_a_finished_runs_images_are_listed_without_opening_their_files(limit: str, tmp_path: Path) -> None:
    """Reports, pages and rewards list images in this way, even for a run with a limit."""
    bench = Bench(tmp_path, METRIC_OPTION, f"benchmark.limit={limit}", generators=("atlas",))
    manifest = read_manifest(bench.store, run_plan(bench.plan()).run_id)
    before, _ = find_originals(manifest, bench.store)
    corrupt(bench.folder / "images/atlas/00000.parquet")
    after, unreadable = find_originals(manifest, bench.store)
    assert before is not None and after is not None, unreadable
    assert after.shards == before.shards and after.prompts.equals(before.prompts)
    assert not gather_scores(bench.store, "latest", None).sources.broken


def test_rows_with_addresses_of_images_are_read_each_time(tmp_path: Path) -> None:
    """The image at an address may have changed since the table was read."""
    bench = Bench(tmp_path, METRIC_OPTION, generators=())
    picture = bench.folder / "images/atlas/one.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(read_image_rows("atlas", 1)[0]["image"])
    row = {**read_image_rows("atlas", 1)[0], "image": None, "uri": str(picture)}
    bench.write("atlas", [row])
    before = bench.plan()
    assert not before.inputs_digest, "a listing does not show whether it has changed"
    picture.write_bytes(read_image_rows("atlas", 2)[1]["image"])
    assert not list_keys(bench.plan().plan) & list_keys(before.plan)
