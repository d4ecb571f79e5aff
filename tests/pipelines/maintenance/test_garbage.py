"""Garbage collection removes only what no kept run needs: kept runs stay complete, and nothing is recomputed."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.images import decoding as module
from plumbline.operators.images.decoding import decode_bytes
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.maintenance.garbage import CollectedGarbage, collect_garbage
from plumbline.pipelines.maintenance.gc_config import GcConfig, RetentionRules
from plumbline.pipelines.maintenance.running_sweeps import (
    DELETION_LEASE_NAME,
    SWEEPS_FOLDER,
    list_running_sweeps,
    send_heartbeats,
)
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.lease import take_lease
from plumbline.pipelines.store.runs import list_run_ids, parse_run_id, read_manifest
from plumbline.pipelines.store.store import Store, get_draft_path
from plumbline.pipelines.sweeps.computing import register_sweep
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, read_image_rows, run_config, run_plan, write_benchmark
from tests.commands import open_store_at

GENERATORS = ("atlas", "flint", "cobalt")
METRICS = ("edge_density", "entropy")
DIED_REASON = "its run has no manifest: the sweep that wrote it died"
UNREFERENCED_REASON = "no kept run refers to it"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a benchmark for sweeps in this process; one image of flint always times out, so drafts exist."""
    folder = write_benchmark(tmp_path_factory.mktemp("keeping") / "bench", GENERATORS, count=6)
    slow = read_image_rows("flint", 3)[2]["image"]
    decode = module.decode_bytes

    def decode_sometimes_too_slowly(encoded: bytes, *arguments: object) -> object:
        if encoded == slow:
            return RowError("image_too_slow", "decoding takes too long", retryable=True)
        return decode(encoded, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "decode_bytes", decode_sometimes_too_slowly)
        yield folder


@lru_cache
def make_config(bench: Path, generators: Sequence[str], metrics: Sequence[str], max_scans: int) -> SweepConfig:
    chosen = f"benchmark.generators=[{','.join(generators)}]", f"metric=[{','.join(metrics)}]"
    return make_sweep_config(bench, bench.parent / "store", *chosen, f"limits.max_scans={max_scans}")


class NightOptions(NamedTuple):
    """Options of a nightly sweep that differ from night to night."""

    generators: tuple[str, ...]
    metrics: tuple[str, ...]
    max_scans: int
    """Value of limits.max_scans; it is part of the key of every cell that is computed from images."""

    def config(self, bench: Path, store: Path) -> SweepConfig:
        return replace(make_config(bench, *self), store=str(store))


def collect_garbage_now(store: Path, **options: object) -> CollectedGarbage:
    """Collect garbage without a grace period, however coarse the disk's timestamps are; return the result."""
    newest = max((path.stat().st_mtime for path in store.rglob("*") if path.is_file()), default=0.0)
    probe = store / "probe"
    while not probe.exists() or probe.stat().st_mtime <= newest:
        probe.touch()
    probe.unlink()
    given = {"delete": True, "grace_days": 0.0, **options}
    return collect_garbage(GcConfig(store=str(store), **given))  # type: ignore[arg-type]


def draw_subsets(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), min_size=1, unique=True).map(lambda chosen: tuple(sorted(chosen)))


def read_tables(store: Store, run_id: str) -> dict[str, pa.Table]:
    return {
        name: store.read_table(f"runs/{run_id}/{name}.parquet") for name in ("scores", "summary", "errors", "cells")
    }


def assert_cells_exist(store: Store, run_id: str) -> None:
    for row in store.read_table(f"runs/{run_id}/cells.parquet").to_pylist():
        assert len(store.read(row["path"], draft=row["state"] == "draft")) > 0, row


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(
    nights=st.lists(
        st.builds(NightOptions, draw_subsets(GENERATORS), draw_subsets(METRICS), st.sampled_from([64, 65])),
        min_size=2,
        max_size=4,
    ),
    keep=st.integers(1, 3),
    breaks_off=st.integers(1, 9),
)
def test_after_a_collection_every_kept_run_is_complete_and_its_sweep_computes_nothing(
    bench: Path, tmp_path_factory: pytest.TempPathFactory, nights: list[NightOptions], keep: int, breaks_off: int
) -> None:
    folder = tmp_path_factory.mktemp("nights")
    store = open_store_at(folder)
    made = {run_config(night.config(bench, folder)).run_id: night for night in nights}
    read_before = {run_id: read_tables(store, run_id) for run_id in made}
    rules = RetentionRules(last=keep)
    stop_collection_after(breaks_off, lambda: collect_garbage_now(folder, keep_runs=rules))
    kept = list(made)[-keep:]
    assert list_run_ids(store)[-len(kept) :] == kept
    for run_id in list_run_ids(store):  # a sweep that was killed in the middle has left no run
        assert all(table.equals(read_before[run_id][name]) for name, table in read_tables(store, run_id).items())
        assert_cells_exist(store, run_id)
    collect_garbage_now(folder, keep_runs=rules)
    assert list_run_ids(store) == kept and sorted(store.list_folders("runs")) == kept
    for run_id in kept:
        assert all(table.equals(read_before[run_id][name]) for name, table in read_tables(store, run_id).items())
        assert_cells_exist(store, run_id)
        missing = plan_sweep(made[run_id].config(bench, folder)).plan.missing
        assert all(store.exists(get_draft_path(cell.path)) for cell in missing), "only failed cells are tried again"
    assert not collect_garbage_now(folder, keep_runs=rules).free


def stop_collection_after(count: int, collecting: Callable[[], object]) -> None:
    """Stop the collection once `count` files have been removed, as if the process had been killed."""
    left = [count]

    class Killed(Exception):
        pass

    def remove_until_killed(folder: Place, paths: Sequence[str]) -> None:
        for path in sorted(paths):
            if path.startswith(SWEEPS_FOLDER):
                continue
            if not left[0]:
                raise Killed
            left[0] -= 1
            Path((folder / path).path).unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "remove_below", remove_until_killed)
        try:
            collecting()
        except Killed:
            return


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_run_whose_removal_was_interrupted_is_no_longer_a_run(bench: Path, store: Path, count: int) -> None:
    run_config(WHOLE_NIGHT.config(bench, store))
    last = run_config(OTHER_NIGHT.config(bench, store))
    stop_collection_after(count, lambda: collect_garbage_now(store, keep_runs=RetentionRules(last=1)))
    assert list_run_ids(open_store_at(store)) == [last.run_id]
    assert len(list(store.glob("runs/*/*.parquet"))) > 4
    assert collect_garbage_now(store).free["runs", DIED_REASON].files > 0
    assert [path.name for path in store.glob("runs/*/")] == [last.run_id]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


WHOLE_NIGHT = NightOptions(GENERATORS, METRICS, 64)
OTHER_NIGHT = NightOptions(GENERATORS, METRICS, 65)


def list_cells(store: Path) -> set[str]:
    paths = {str(path.relative_to(store)) for path in store.glob("*/*/*/*.parquet")}
    return {path for path in paths if not path.startswith(("runs/", "sources/"))}


def test_without_delete_nothing_is_removed_and_each_kind_has_a_reason(bench: Path, store: Path) -> None:
    first = run_config(WHOLE_NIGHT.config(bench, store))
    run_config(OTHER_NIGHT.config(bench, store))
    before = list_cells(store)
    (store / "markers").mkdir(exist_ok=True)
    (store / "markers" / "dead").write_text("left behind")
    some_cell = store / min(before)
    some_cell.with_name(f".{some_cell.name}.0123").write_bytes(b"half a cell")
    (store / "runs/20200101-000000-000000").mkdir()
    (store / "runs/20200101-000000-000000/errors.parquet").write_bytes(b"of a sweep that died")
    remembered = {path.relative_to(store) for path in store.glob("sources/small/*/*.parquet")}
    for path in ("sources/small/0123/left.parquet", "sources/other/0123/atlas.parquet", "sources/0123/atlas.parquet"):
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).write_bytes(b"of a generator, or a benchmark, that no run has, and of an earlier version")
    collected = collect_garbage_now(store, delete=False, keep_runs=RetentionRules(last=1))
    amounts = {why: amount.files for why, amount in collected.free.items()}
    assert collected.runs == (first.run_id,) and not collected.deleted and list_cells(store) == before
    assert amounts.pop(("runs", "keep_runs does not keep its run")) > 4
    assert amounts == {
        ("image_statistics", UNREFERENCED_REASON): 6,
        ("image_statistics", "left by a writer that died"): 1,
        ("scores", UNREFERENCED_REASON): 12,
        ("sources", "no kept run has these images"): 3,
        ("markers", "left by a writer that died"): 1,
        ("runs", DIED_REASON): 1,
    }
    assert all(amount.size > 0 for amount in collected.free.values())
    assert collect_garbage_now(store, keep_runs=RetentionRules(last=1)).free == collected.free
    assert len(list_cells(store)) == len(before) - 18
    assert {path.relative_to(store) for path in store.glob("sources/**/*.parquet")} == remembered != set()
    assert not collect_garbage_now(store, keep_runs=RetentionRules(last=1)).free


def test_recently_written_files_stay(bench: Path, store: Path) -> None:
    """Otherwise, the drafts and cells of an interrupted sweep would be removed before the sweep continues."""
    run_config(WHOLE_NIGHT.config(bench, store))
    shutil.rmtree(store / "runs")
    assert not collect_garbage_now(store, grace_days=7.0).free
    assert collect_garbage_now(store).free["scores", UNREFERENCED_REASON].files == 12


def test_a_deleted_run_leaves_no_position_in_the_order(bench: Path, store: Path) -> None:
    first, second = run_config(WHOLE_NIGHT.config(bench, store)), run_config(OTHER_NIGHT.config(bench, store))
    shutil.rmtree(store / "runs" / first.run_id)
    assert collect_garbage_now(store).free["order", "its run is gone"].files == 1
    assert [parse_run_id(path.name) for path in (store / "order").iterdir()] == [second.run_id]


def test_a_draft_stays_while_a_kept_run_reads_it(bench: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_config(WHOLE_NIGHT.config(bench, store))
    drafts = {path for path in list_cells(store) if ".draft." in path}
    assert len(drafts) == 3
    monkeypatch.setattr(module, "decode_bytes", decode_bytes)
    second = run_config(WHOLE_NIGHT.config(bench, store))
    assert (second.computed, second.exit_code) == (3, 0)
    assert not collect_garbage_now(store).free
    kept = RetentionRules(last=1)
    why = "its cell is committed, and no kept run reads the draft"
    collected = collect_garbage_now(store, keep_runs=kept)
    assert (collected.free["scores", why].files, collected.free["image_statistics", why].files) == (2, 1)
    assert collected.runs == (first.run_id,) and not drafts & list_cells(store)


def test_cells_of_a_pruned_stage_are_removed_if_the_scores_exist(bench: Path, store: Path) -> None:
    done = run_config(WHOLE_NIGHT.config(bench, store))
    collected = collect_garbage_now(store, grace_days=7.0, prune=("image_statistics",))
    pruned = collected.free["image_statistics", "pruned: the scores computed from it exist"]
    assert pruned.files == 5, "one of the six is needed by scores that are not yet computed"
    again = plan_sweep(WHOLE_NIGHT.config(bench, store)).plan
    assert {cell.shard.group for cell in again.missing} == {"flint"} and len(again.missing) == 3
    assert read_tables(open_store_at(store), done.run_id)["scores"].num_rows == 36
    with pytest.raises(ConfigError, match=r"prune: expected one or more of .*, got 'questions'"):
        GcConfig(store="x", prune=("questions",))


def test_a_report_can_be_made_again(bench: Path, store: Path) -> None:
    kept = run_config(WHOLE_NIGHT.config(bench, store))
    run_config(OTHER_NIGHT.config(bench, store))
    collect_garbage_now(store, keep_runs=RetentionRules(daily=1, named=(kept.run_id,)))
    config = WHOLE_NIGHT.config(bench, store)
    written = write_report(open_store_at(store), kept.run_id, sources=plan_sweep(config).sources)
    assert Path(f"{kept.folder}/report.html").stat().st_size > 10_000, written


def test_a_running_sweep_keeps_its_cells_and_reports_its_progress(bench: Path, store: Path) -> None:
    run_config(WHOLE_NIGHT.config(bench, store))
    run_config(OTHER_NIGHT.config(bench, store))
    cells = list_cells(store)
    first = RetentionRules(last=1)
    planned = plan_sweep(WHOLE_NIGHT.config(bench, store))
    with register_sweep(planned, lambda progress: None, run="mine"):
        (sweeping,) = list_running_sweeps(planned.store, 0.0)
        assert (sweeping.status.run, sweeping.status.benchmark) == ("mine", "small")
        assert {name: (state.cells, state.missing) for name, state in sweeping.status.stages.items()} == {
            "image_statistics": (6, 1),
            "scores": (12, 2),
        }
        collected = collect_garbage_now(store, keep_runs=first)
        assert list(collected.in_use) == ["mine"] and list_cells(store) == cells
    assert not list_running_sweeps(planned.store, 0.0) and not list((store / SWEEPS_FOLDER).iterdir())
    assert collect_garbage_now(store, keep_runs=first).free["scores", UNREFERENCED_REASON].files == 12


def test_a_dead_nights_lease_is_removed_once_its_holder_cannot_be_merely_stalled(store: Path) -> None:
    within = open_store_at(store)
    within.check()
    within.write_text("runs/2020-01-01/claim.json", "{}")
    with send_heartbeats(within, run="2020-01-01"):
        assert not collect_garbage_now(store).free, "its nightly run is active"
    assert not collect_garbage_now(store, grace_days=7.0).free, "it may continue"
    assert collect_garbage_now(store).free["runs", DIED_REASON].files == 1 and within.list_folders("runs") == []


def test_the_heartbeat_of_a_dead_sweep_keeps_cells_only_for_a_while(
    bench: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config(WHOLE_NIGHT.config(bench, store))
    shutil.rmtree(store / "runs")
    (store / SWEEPS_FOLDER).mkdir(exist_ok=True)
    (store / SWEEPS_FOLDER / "0.json").write_text("half a si")
    assert "scores" not in {stage for stage, _ in collect_garbage_now(store).free}, "the sweep may use any cell"
    monkeypatch.setattr("plumbline.pipelines.maintenance.running_sweeps.HEARTBEAT_TIMEOUT", 0.0)
    collected = collect_garbage_now(store)
    assert collected.free["scores", UNREFERENCED_REASON].files == 12 and not list((store / SWEEPS_FOLDER).iterdir())


def test_a_sweep_that_was_planned_before_cells_were_deleted_is_planned_again(bench: Path, store: Path) -> None:
    run_config(WHOLE_NIGHT.config(bench, store))
    planned = plan_sweep(WHOLE_NIGHT._replace(generators=("atlas",)).config(bench, store))
    assert not planned.plan.missing
    shutil.rmtree(store / "runs")
    assert collect_garbage_now(store).free
    done = run_plan(planned)
    assert (done.computed, done.exit_code) == (6, 0)


def test_a_sweep_waits_during_a_deletion_with_a_message_and_is_planned_again(
    bench: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_config(WHOLE_NIGHT.config(bench, store))
    planned = plan_sweep(WHOLE_NIGHT.config(bench, store))
    with ThreadPoolExecutor(1) as pool:
        with take_lease(planned.store, DELETION_LEASE_NAME, "gc", seconds=60):
            running = pool.submit(run_sweep, planned, lambda progress: None)
            while not list_running_sweeps(planned.store, 0.0):
                assert not running.done()
            shutil.rmtree(store / "scores/")
            assert len(list_run_ids(planned.store)) == 1
        done = running.result()
    assert (len(planned.plan.missing), done.computed, done.results.n_null) == (3, 13, 2)
    assert "waiting while gc on " in capsys.readouterr().err


def test_nothing_is_removed_if_the_cells_of_a_kept_run_are_unknown(bench: Path, store: Path, tmp_path: Path) -> None:
    done = run_config(WHOLE_NIGHT.config(bench, store))
    cells = list_cells(store)
    Path(f"{done.folder}/cells.parquet").write_bytes(b"harmed")
    with pytest.raises(ConfigError, match=f"cells.parquet: the table is damaged.*runs/{done.run_id}"):
        collect_garbage_now(store)
    assert list_cells(store) == cells
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(ConfigError, match="there is no store here"):
        collect_garbage_now(tmp_path / "nowhere")
    (tmp_path / "other" / "runs" / "one").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"it has runs but no store\.json"):
        collect_garbage_now(tmp_path / "other")


def test_on_s3_one_call_removes_many_files_and_names_are_not_patterns(bench: Path, bucket: str) -> None:
    place = StorageConfig().locate(bucket)
    for name in ("a*", "ab", "a[b]", "ac"):
        (place / name).write(b"x")
    place.remove_below(("a*", "a[b]", "gone"))
    assert sorted(place.list()) == ["ab", "ac"]
    store = f"{bucket}/store"
    config = replace(make_config(bench, ("atlas",), ("entropy",), 64), store=store)
    first, second = run_config(config), run_config(replace(config, limits=replace(config.limits, max_scans=65)))
    standing = plan_sweep(config).store
    newest = max(file.written for folder in standing.list_folders("") for file in standing.walk_files(folder))
    standing.write_text("probe", "")
    while (standing.place / "probe").get_entry().modified <= newest:  # S3 records times in whole seconds
        standing.write_text("probe", "")
    collected = collect_garbage(GcConfig(store=store, delete=True, grace_days=0, keep_runs=RetentionRules(last=1)))
    assert collected.runs == (first.run_id,) and collected.free["scores", UNREFERENCED_REASON].files == 2
    kept = plan_sweep(replace(config, limits=replace(config.limits, max_scans=65)))
    assert list_run_ids(kept.store) == [second.run_id] and not kept.plan.missing
    assert read_manifest(kept.store, second.run_id)["exit_code"] == 0
    again = collect_garbage(GcConfig(store=store, delete=True, grace_days=0, keep_runs=RetentionRules(last=1)))
    assert not again.free
