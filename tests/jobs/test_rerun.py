"""Repeating an unchanged sweep returns the existing run; if that run is damaged, the sweep writes a new one."""

import io
import os
import re
import shutil
from datetime import timedelta
from pathlib import Path
from random import Random

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store import store
from plumbline.pipelines.store.runs import find_newest_run, find_run, list_run_ids, name_by_time
from plumbline.pipelines.store.store import Store, StoreError
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import SHAPES_FOLDER, Bench, read_image_rows, read_prompt_rows, save_scores, write_rows
from tests.commands import run
from tests.faults.outcomes import read_scores
from tests.histories.damage import ROT_WAYS, damage_file

METRIC_OPTION = "metric=[clipscore]"


class ScoredBench(Bench):
    """A benchmark and a store that already contains all cells of its sweep."""

    def __init__(self, folder: Path, *words: str) -> None:
        super().__init__(folder, METRIC_OPTION, *words)
        save_scores(self.plan())

    def change(self, skill: str) -> None:
        """Change the skill of the prompts, so that the next sweep makes a new run."""
        write_rows(self.folder / "prompts.parquet", [{**prompt, "skills": [skill]} for prompt in read_prompt_rows(8)])
        save_scores(self.plan())

    def list_files(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in Path(self.store.place.url).rglob("*") if path.is_file()}


def read_mean(store: Store, run_id: str) -> float:
    """Return atlas's overall mean score in a run."""
    summary = pq.read_table(f"{store.place.url}/runs/{run_id}/summary.parquet").to_pandas()
    return float(summary.query("generator == 'atlas' and skill == 'overall'")["mean"].item())


def find_leaderboard(printed: str) -> str:
    """Return the printed table of means, including its title."""
    (table,) = re.findall(r"^ *means; sharing a letter: .*?└[^\n]*", printed, flags=re.DOTALL | re.MULTILINE)
    return str(table)


@pytest.fixture
def sweep(tmp_path: Path) -> ScoredBench:
    return ScoredBench(tmp_path)


def test_an_unchanged_sweep_writes_nothing_and_names_the_existing_run(sweep: ScoredBench) -> None:
    code, first, _ = sweep.run()
    (run_id,) = list_run_ids(sweep.store)
    before = sweep.list_files()
    assert code == 0
    code, printed, _ = sweep.run()
    assert find_leaderboard(printed) == find_leaderboard(first)
    assert code == 0 and sweep.list_files() == before and find_newest_run(sweep.store) == run_id
    report = f"{sweep.store.place.url}/runs/{run_id}/report.html"
    assert f"nothing changed since run {run_id}: {report}" in printed and f"run {run_id}, exit code 0" in printed
    assert "clipscore: overall" not in printed
    means = re.search(r"means.*?atlas +│[^│]*│ +(0\.\d{3})", printed, flags=re.DOTALL)
    assert means is not None and float(means[1]) == pytest.approx(read_mean(sweep.store, run_id), abs=5e-4)


def test_cells_whose_rows_are_all_in_earlier_cells_are_copied_and_not_computed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, METRIC_OPTION, "models=shapes", "cluster=here")
    assert re.search(r"\ncomputed [1-9]\d* cells, run", bench.run().out)
    touched = bench.write("atlas", read_image_rows("atlas", 8))
    os.utime(touched, (1, 1))
    assert re.search(r"\ncomputed 0 cells, copied [1-9] from rows of earlier ones, run", bench.run().out)


@pytest.mark.parametrize("word", ["cluster=local", "cluster.max_attempts=7", "models.clip.image_batch=7"])
def test_execution_options_do_not_change_which_run_a_sweep_or_night_belongs_to(word: str, sweep: ScoredBench) -> None:
    """Nightly runs use Ray by default, and sweeps do not."""
    assert sweep.run().code == 0
    (run_id,) = list_run_ids(sweep.store)
    assert f"nothing changed since run {run_id}" in sweep.run(word).out
    assert f"computed 0 cells, run {run_id}, exit code 0" in sweep.run(word, job="nightly").out
    assert list_run_ids(sweep.store) == [run_id]


@pytest.mark.parametrize("file", ["", "manifest.json", "scores.parquet", "summary.parquet"])
def test_a_run_with_a_deleted_file_is_made_again(file: str, sweep: ScoredBench) -> None:
    """Damaged files are covered in tests/pipelines/store/test_run_files.py."""
    sweep.run()
    (first,) = list_run_ids(sweep.store)
    path = sweep.runs / first / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sweep.run().code == 0
    newest = find_newest_run(sweep.store)
    assert newest not in (None, first)
    names = {file.name for file in (sweep.runs / str(newest)).iterdir()}
    assert names >= {"report.html", "summary.csv", "summary.md", "manifest.json", "scores.parquet"}


OWN_TABLES = ("scores.parquet/*", "errors.parquet/*", "summary.parquet", "cells.parquet", "usual_scores.parquet")


@pytest.mark.parametrize("file", OWN_TABLES)
@pytest.mark.parametrize("way", ROT_WAYS)
def test_damage_that_leaves_size_and_time_unchanged_is_noticed_and_the_run_is_made_again(
    way: str, file: str, sweep: ScoredBench
) -> None:
    sweep.run()
    (first,) = list_run_ids(sweep.store)
    whole = read_scores(str(sweep.runs / first))
    paths = sorted((sweep.runs / first).glob(file))
    path = Random(way + file).choice(paths)
    before = path.stat()
    assert damage_file(path, way, Random(way + file))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert sweep.run().code == 0
    second = find_newest_run(sweep.store)
    assert second not in (None, first)
    pd.testing.assert_frame_equal(read_scores(str(sweep.runs / str(second))), whole)
    assert run("report", f"store={sweep.store.place}").code == 0
    assert f"nothing changed since run {second}" in sweep.run().out


def test_a_damaged_part_is_repaired_in_every_run_that_shares_its_bytes(sweep: ScoredBench) -> None:
    """Each run has different scores for flint, but a hard link to the same scores for atlas."""
    for name in ("garnet", "ember", "cobalt"):
        sweep.run()
        write_rows(sweep.folder / "images/flint/00000.parquet", read_image_rows(name, 8))
        save_scores(sweep.plan())
    parts = [path for path in sorted(sweep.runs.glob("*/scores.parquet/*")) if path.stat().st_nlink == 3]
    (shared,) = {path.stat().st_ino for path in parts}
    whole = pq.read_table(parts[0])
    chance = Random(6)
    assert damage_file(chance.choice(parts), chance.choice(ROT_WAYS), chance)
    assert sweep.run().code == 0
    assert len(parts) == 3 and shared not in {path.stat().st_ino for path in parts}
    for path in parts:
        assert pq.read_table(path).equals(whole)


def test_a_damaged_part_of_an_earlier_run_is_repaired_so_that_the_next_run_is_compared_with_it(
    sweep: ScoredBench,
) -> None:
    """Each generator's scores are a separate part; the next run has a different part for flint."""
    sweep.run()
    (first,) = list_run_ids(sweep.store)
    whole = {path: path.read_bytes() for path in sorted((sweep.runs / first).glob("scores.parquet/*"))}
    atlas = next(path for path in whole if "atlas" in pq.read_table(path).column("generator").to_pylist())
    assert damage_file(atlas, "rot", Random(5))
    write_rows(sweep.folder / "images/flint/00000.parquet", read_image_rows("garnet", 8))
    save_scores(sweep.plan())
    assert sweep.run().code == 0
    assert pq.read_table(atlas).equals(pq.read_table(io.BytesIO(whole[atlas])))
    compared = run("report", f"store={sweep.store.place}", f"compare={first}")
    assert compared.code == 0, compared


@pytest.mark.parametrize("page", ["runs/{}/report.html", "latest/report.html"])
@pytest.mark.parametrize("way", ["truncate", *ROT_WAYS])
def test_a_damaged_page_of_an_existing_run_is_written_again(way: str, page: str, sweep: ScoredBench) -> None:
    sweep.run()
    (first,) = list_run_ids(sweep.store)
    path = Path(sweep.store.place.url) / page.format(first)
    assert path.read_text().startswith("<!doctype html>") and damage_file(path, way, Random(way))
    assert sweep.run().code == 0 and list_run_ids(sweep.store) == [first]
    names = [name.format(first) for name in ("runs/{}/report.html", "latest/report.html")]
    assert all(map(sweep.store.has_page, names)) and len(set(map(sweep.store.read_text, names))) == 1
    before = sweep.list_files()
    assert sweep.run().code == 0 and sweep.list_files() == before


def test_a_missing_report_of_an_existing_run_is_written(sweep: ScoredBench) -> None:
    sweep.run()
    (first,) = list_run_ids(sweep.store)
    report = sweep.runs / first / "report.html"
    report.unlink()
    assert sweep.run().code == 0
    assert list_run_ids(sweep.store) == [first] and report.read_text().startswith("<!doctype html>")


def test_a_run_is_made_again_if_its_cells_could_not_be_read_at_first(
    sweep: ScoredBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run is made even though no cells are missing any more and the inputs are the same."""

    def fail_to_answer(place: Place) -> bytes:
        if "/store/scores/" in place.url:
            raise StoreError(f"{place}: the store does not answer")
        return read(place)

    read = store._read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(store, "_read_bytes", fail_to_answer)
        assert sweep.run().code == 1
    first = find_newest_run(sweep.store)
    assert sweep.run().code == 0 and find_newest_run(sweep.store) != first
    assert sweep.run().code == 0 and len(list_run_ids(sweep.store)) == 2


def test_changed_skills_and_new_folders_make_another_run_without_new_cells(sweep: ScoredBench) -> None:
    sweep.run()
    sweep.change("relabelled")
    sweep.run()
    newest = find_newest_run(sweep.store)
    summary = pq.read_table(f"{sweep.store.place.url}/runs/{newest}/summary.parquet")
    assert "relabelled" in summary.column("skill").to_pylist()
    (sweep.folder / "images/golem").mkdir()
    sweep.run()
    assert len(list_run_ids(sweep.store)) == 3


def test_a_sweep_names_the_newest_run_even_if_the_last_runs_clock_was_ahead(sweep: ScoredBench) -> None:
    later = lambda store, began: name_by_time(store, began + timedelta(minutes=10))  # noqa: E731
    ahead = run_sweep(sweep.plan(), lambda progress: None, name=later)
    write_report(sweep.store, ahead.run_id)
    assert find_newest_run(sweep.store) == ahead.run_id
    sweep.change("relabelled")
    for wanted in ("", "nothing changed since run "):
        code, printed, _ = sweep.run()
        (second,) = set(list_run_ids(sweep.store)) - {ahead.run_id}
        assert code == 0 and f"{wanted}{second}" in printed and find_run(sweep.store, "latest") == second
    assert sweep.run("benchmark.name=other").code == 0
    assert find_run(sweep.store, "latest") == list_run_ids(sweep.store)[-1] not in (ahead.run_id, second)
    assert f"nothing changed since run {second}" in sweep.run().out
    report = sweep.store.read_text(f"runs/{second}/report.html")
    assert find_run(sweep.store, "latest") == second and sweep.store.read_text("latest/report.html") == report


def test_the_next_sweep_reports_an_agreement_with_people_that_could_not_be_computed_before(tmp_path: Path) -> None:
    ratings = tmp_path / "pack"
    sweep = ScoredBench(tmp_path, "sweep=shapes", f"protocol.path={ratings}")
    sweep.run()
    shutil.copytree(SHAPES_FOLDER, ratings, ignore=shutil.ignore_patterns("images"))
    assert sweep.run().code == 0
    (run_id,) = list_run_ids(sweep.store)
    assert (sweep.runs / run_id / "metaeval/judgements.md").exists()


def test_a_sweep_of_unreadable_images_does_not_claim_that_all_is_in_the_store(sweep: ScoredBench) -> None:
    for generator in ("atlas", "flint"):
        (sweep.folder / f"images/{generator}/00000.parquet").write_bytes(b"PAR1")
    code, printed, _ = sweep.run()
    assert code == 1
    assert "0 cells to compute: no image can be read" in printed
    assert "everything is in the store" not in printed
