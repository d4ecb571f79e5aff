"""A run copies the parts of tables that earlier runs made from the same cells, and reads only the other cells."""

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps import results
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import Bench, read_image_rows, read_prompt_rows, read_run_tables, run_plan, save_scores, write_rows


class Nights(Bench):
    """A benchmark that is swept after each change; missing cells get made-up scores, so no model runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, "metric=[clipscore]")
        self.read: list[str] = []
        """Paths of the cells that the last sweep read, in order."""
        read = Store.read

        def read_and_note(store: Store, path: str, **options: object) -> pa.Table:
            self.read.append(path)
            return read(store, path, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Store, "read", read_and_note)

    def sweep(self, *words: str) -> FinishedSweep:
        planned = self.plan(*words)
        save_scores(planned)
        self.read.clear()
        return run_plan(self.plan(*words))

    def add(self, generator: str, count: int = 8, file: str = "00000") -> None:
        self.write(generator, read_image_rows(generator, count), file)

    def list_generators_read(self) -> set[str]:
        return {path.split("/")[2] for path in self.read}


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    return Nights(tmp_path, monkeypatch)


def assert_equals_fresh_run(nights: Nights, done: FinishedSweep, folder: Path) -> None:
    """Assert that the tables equal those of a sweep over the same cells without an earlier run."""
    shutil.copytree(nights.store.place.url, folder, ignore=shutil.ignore_patterns("runs"), copy_function=shutil.copy2)
    fresh = nights.sweep(f"store={folder}")
    assert nights.read, "every cell is read"
    for name, table in read_run_tables(fresh).items():
        pd.testing.assert_frame_equal(read_run_tables(done)[name], table)


def test_a_night_with_one_new_generator_reads_only_its_cells(nights: Nights, tmp_path: Path) -> None:
    first = nights.sweep()
    assert nights.list_generators_read() == {"atlas", "flint"}
    nights.add("cobalt", count=6)
    second = nights.sweep()
    assert nights.list_generators_read() == {"cobalt"} and len(nights.read) == 2
    assert (second.results.rows, second.results.n_null) == (first.results.rows + 8, 2)
    assert_equals_fresh_run(nights, second, tmp_path / "fresh")


@pytest.mark.parametrize("rows_of_a_part, changed", [(1, 1), (8, 2), (1000, 4)])
def test_a_growing_generator_only_changes_its_last_part(
    rows_of_a_part: int, changed: int, nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MAX_PART_ROWS", rows_of_a_part)
    nights.add("atlas", 4, file="00001")
    nights.sweep()
    nights.add("atlas", 4, file="00002")
    grown = nights.sweep()
    assert len(nights.read) == changed and nights.list_generators_read() == {"atlas"}
    assert_equals_fresh_run(nights, grown, tmp_path / "fresh")


def test_copied_rows_without_a_score_keep_their_error_and_their_place(nights: Nights, tmp_path: Path) -> None:
    planned = nights.plan()
    cell = planned.plan.scores["clipscore"][-1]
    ids = read_shard(cell.shard, ("image_id", "prompt_id")).to_pylist()
    error = {"kind": "corrupt_image", "message": "the image does not decode", "retryable": False}
    failed = [{**row, "generator": "flint", "metric": "clipscore", "error": error} for row in ids]
    planned.store.save(planned.plan.make_cell(cell), rows.table(failed, schemas.ELEMENT_SCORES))
    nights.sweep()
    nights.add("cobalt")
    done = nights.sweep()
    errors = done.results.read_errors().to_pylist()
    assert nights.list_generators_read() == {"cobalt"} and done.results.n_null == 4
    assert [(row["file"], row["row"]) for row in errors] == [(cell.shard.url, row) for row in range(4, 8)]
    assert_equals_fresh_run(nights, done, tmp_path / "fresh")


@pytest.mark.parametrize("harm", ["damage", "delete", "forget what was counted"])
def test_a_part_that_cannot_be_copied_is_made_from_its_cells_again(harm: str, nights: Nights, tmp_path: Path) -> None:
    """This also applies to a part that was written before runs stored tallies."""
    nights.sweep()
    for path in nights.runs.glob("*/scores.parquet/00000-*.parquet"):
        if harm == "delete":
            path.unlink()
        elif harm != "damage":
            pq.write_table(pq.read_table(path), path)
        else:
            path.write_bytes(path.read_bytes()[:-9] + b"otherwise")
    nights.add("cobalt")
    done = nights.sweep()
    assert "atlas" in nights.list_generators_read()
    assert_equals_fresh_run(nights, done, tmp_path / "fresh")


def test_a_rewritten_cell_is_read_again(nights: Nights, tmp_path: Path) -> None:
    nights.sweep()
    planned = nights.plan()
    cell = planned.plan.scores["clipscore"][0]
    table = planned.store.read(cell.path)
    planned.store.remove(cell.path)
    planned.store.save(planned.plan.make_cell(cell), table.set_column(4, "score", pa.array([0.75] * len(table))))
    nights.add("cobalt")
    done = nights.sweep()
    assert 0.75 in done.results.read_scores().column("score").to_pylist()
    assert_equals_fresh_run(nights, done, tmp_path / "fresh")


def test_relabelled_prompts_are_counted_again_and_an_added_prompt_changes_no_part(
    nights: Nights, tmp_path: Path
) -> None:
    nights.sweep()
    asked = read_prompt_rows(9)
    write_rows(nights.folder / "prompts.parquet", asked, row_group=8)
    nights.sweep()
    assert not nights.read
    write_rows(nights.folder / "prompts.parquet", [{**asked[0], "skills": ["other"]}, *asked[1:]], row_group=8)
    done = nights.sweep()
    assert len(nights.read) == 4 and "other" in done.results.summary.column("skill").to_pylist()
    assert_equals_fresh_run(nights, done, tmp_path / "fresh")
