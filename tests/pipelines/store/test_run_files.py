"""A run's own files are verified like cells: a flipped bit is detected and reported, and the file is rewritten."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from plumbline.jobs.table import JOBS
from plumbline.pipelines.maintenance.running_sweeps import SWEEPS_FOLDER, read_heartbeats, send_heartbeats
from plumbline.pipelines.nightly.outcome import NightOutcome, get_outcome_path, read_outcome
from plumbline.pipelines.store.lease import LeaseHolder, read_lease, take_lease
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store, StoreError
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import Bench, read_image_rows, read_prompt_rows, read_run_tables, run_plan, save_scores, write_rows
from tests.commands import open_store_at, run
from tests.histories.damage import ROT_WAYS, damage_file

RUN_FILES = (
    "manifest.json",
    "cells.parquet",
    "summary.parquet",
    "errors.parquet/*.parquet",
    "scores.parquet/00000-*.parquet",
)


class SweptStore(Bench):
    """A store with a run that has rows without a score."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "metric=[clipscore]", "max_failed=0.5", generators=("flint", "atlas"), count=9)
        shuffled = random.Random(1).sample(read_prompt_rows(9), 9)
        write_rows(self.folder / "prompts.parquet", shuffled, row_group=5)
        drawn = random.Random(2).sample(read_image_rows("atlas", 9), 7)
        write_rows(self.folder / "images/atlas/00000.parquet", drawn, row_group=3)
        self.first = self.sweep()
        self.tables = read_run_tables(self.first)
        self.kept = shutil.copytree(self.store.place.url, folder / "kept", copy_function=shutil.copy2)

    def sweep(self) -> FinishedSweep:
        save_scores(self.plan())
        return run_plan(self.plan())

    def restore(self) -> Path:
        """Restore the store to its state after the first run, and return the store's folder."""
        shutil.rmtree(self.store.place.url)
        return Path(shutil.copytree(self.kept, self.store.place.url, copy_function=shutil.copy2))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweptStore:
    return SweptStore(tmp_path_factory.mktemp("swept"))


def flip_bit(path: Path, seed: int) -> None:
    """Flip a bit that depends on the seed, in a copy of the file, so that its hard links stay intact."""
    data = bytearray(path.read_bytes())
    place = random.Random(seed).randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    path.unlink()
    path.write_bytes(data)


def assert_equals_first_run(swept: SweptStore, run: FinishedSweep) -> None:
    assert run.exit_code == swept.first.exit_code == 2 and not run.computed
    for name, table in read_run_tables(run).items():
        pd.testing.assert_frame_equal(table, swept.tables[name])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
@pytest.mark.parametrize("file", RUN_FILES)
def test_a_run_with_a_flipped_bit_is_made_again_from_its_cells(file: str, seed: int, swept: SweptStore) -> None:
    store = swept.restore()
    (path,) = (store / "runs" / swept.first.run_id).glob(file)
    flip_bit(path, seed)
    again = swept.sweep()
    assert not again.unchanged and again.run_id != swept.first.run_id
    assert_equals_first_run(swept, again)


@pytest.mark.parametrize("file", RUN_FILES[1:])
@pytest.mark.parametrize("way", ROT_WAYS)
def test_a_planned_sweep_notices_damage_that_leaves_size_and_time_unchanged(
    way: str, file: str, swept: SweptStore
) -> None:
    store = swept.restore()
    (path,) = (store / "runs" / swept.first.run_id).glob(file)
    assert damage_file(path, way, random.Random(file))
    again = swept.sweep()
    assert not again.unchanged and swept.sweep().unchanged
    assert_equals_first_run(swept, again)


def test_a_run_whose_parts_were_swapped_is_made_again_from_its_cells(swept: SweptStore) -> None:
    store = swept.restore()
    one, other = sorted((store / f"runs/{swept.first.run_id}/scores.parquet").glob("*-*.parquet"))[:2]
    content = one.read_bytes(), other.read_bytes()
    for path, exchanged in ((other, content[0]), (one, content[1])):
        path.unlink()
        path.write_bytes(exchanged)
    again = swept.sweep()
    assert not again.unchanged and swept.sweep().unchanged
    assert_equals_first_run(swept, again)


def test_files_of_a_run_written_by_other_programs_are_read(swept: SweptStore) -> None:
    """Files without a digest are read, such as tables written by pandas or DuckDB and manifests edited with jq."""
    store = open_store_at(swept.restore())
    folder = Path(store.place.url) / "runs" / swept.first.run_id
    pd.read_parquet(folder / "summary.parquet").to_parquet(folder / "summary.parquet")
    manifest = read_manifest(store, swept.first.run_id)
    store.write_text(f"runs/{swept.first.run_id}/manifest.json", json.dumps(manifest))
    assert read_manifest(store, swept.first.run_id) == manifest
    assert store.read_table(f"runs/{swept.first.run_id}/summary.parquet").num_rows


FILES_BY_COMMAND = {
    "report": ([], RUN_FILES),
    "trends": ([], ("manifest.json", "summary.parquet")),
    "gc": ([], ("cells.parquet",)),
    "rewards": (
        ["output=OUT", "format=pairs"], ("manifest.json", "cells.parquet", "scores.parquet/00000-*.parquet")
    ),
    "export": (["output=OUT", "format=lance"], ("manifest.json", "scores.parquet/00000-*.parquet")),
    "status": ([], ("manifest.json",)),
    "metaeval": (["run=latest", "protocol=shapes"], ("manifest.json", "scores.parquet/00000-*.parquet")),
}  # fmt: skip


@pytest.mark.parametrize(
    "job, file", [(job, file) for job, (_, files) in FILES_BY_COMMAND.items() if job in JOBS for file in files]
)
def test_every_reader_of_a_damaged_file_names_it_in_one_line(
    job: str, file: str, swept: SweptStore, tmp_path: Path
) -> None:
    store = swept.restore()
    (path,) = (store / "runs" / swept.first.run_id).glob(file)
    flip_bit(path, 7)
    printed = run(
        job, f"store={store}", *(text.replace("OUT", str(tmp_path / "out")) for text in FILES_BY_COMMAND[job][0])
    )
    assert printed.code == (0 if job == "status" else 1)
    (line,) = [line for line in (printed.out + printed.err).splitlines() if str(path) in line]
    assert "damaged" in line and ("run the sweep again" in line or "collect again" in line)


def check_flipped_bits(store: Store, path: str, read: Callable[[], object], expected: object) -> None:
    """Flip 200 random bits of a small file, one at a time; assert that each time `read` returns the expected content.

    A flipped bit in the name of the digest's field may have no effect, in which case the original content is returned.
    """
    place, sound = store.place, read()
    whole = bytearray((place / path).read())
    for bit in random.Random(0).sample(range(8 * len(whole)), 200):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        (place / path).write(bytes(harmed))
        assert read() in (expected, sound), f"bit {bit}"
    (place / path).write(bytes(whole))


def test_a_damaged_digest_of_weights_is_computed_again(tmp_path: Path) -> None:
    store = open_store_at(tmp_path / "store")
    weights, others = tmp_path / "weights", tmp_path / "others"
    weights.write_bytes(b"one")
    others.write_bytes(b"two")
    digests = [store.digest_file(file, remember=True) for file in (weights, others)]
    note, other = store.files("digests")
    contents = [store.read_text(path) or "" for path in (note, other)]
    for path in (note, other):
        check_flipped_bits(
            store, path, lambda: [store.digest_file(file, remember=False) for file in (weights, others)], digests
        )
    store.write_text(note, contents[1])
    store.write_text(other, contents[0])
    assert [store.digest_file(file, remember=True) for file in (weights, others)] == digests
    assert sorted(contents) == sorted(store.read_text(path) or "" for path in (note, other)), "they are repaired"
    store.write_text(note, "0" * 64)
    assert [store.digest_file(file, remember=False) for file in (weights, others)] == digests


def test_a_damaged_lease_heartbeat_or_outcome_counts_as_missing(tmp_path: Path) -> None:
    store = open_store_at(tmp_path / "store")
    lease = take_lease(store, "nightly", "nightly")
    assert isinstance(read_lease(store, "nightly").holder, LeaseHolder) and lease.number == 1
    (path,) = store.files("leases/nightly")
    check_flipped_bits(store, path, lambda: read_lease(store, "nightly").holder, None)
    with send_heartbeats(store, run="r", uses=["scores/1"]):
        (path,) = store.files(SWEEPS_FOLDER)
        assert [sign.content["uses"] for sign in read_heartbeats(store)] == [["scores/1"]]
        check_flipped_bits(store, path, lambda: [sign.content for sign in read_heartbeats(store)], [{}])
    outcome = NightOutcome(
        run_id="r", exit_code=0, benchmark="b", began="", ended="", report="", counts={"coverage": 1.0},
        compared_with=None, not_compared=None, regressions=[], improvements=[], sentences=[],
    )  # fmt: skip
    store.write_json(get_outcome_path("r"), outcome.to_json())
    assert read_outcome(store, "r") == outcome
    check_flipped_bits(store, get_outcome_path("r"), lambda: read_outcome(store, "r"), None)


def test_no_flipped_bit_of_a_runs_table_is_read_as_another_value(swept: SweptStore) -> None:
    store = open_store_at(swept.restore())
    path = f"runs/{swept.first.run_id}/summary.parquet"
    whole = store.read_table(path)

    def read() -> object:
        try:
            return store.read_table(path) == whole
        except StoreError as error:
            return "damaged" in str(error)

    check_flipped_bits(store, path, read, True)
