"""verify=true reads every cell that a run is made from, and recomputes damaged or lost cells."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pandas as pd
import pytest

from plumbline.pipelines.store.runs import find_newest_run, read_manifest
from plumbline.pipelines.store.store import BrokenCellError
from tests.bench_of import Bench
from tests.commands import FinishedJob, run
from tests.faults.outcomes import read_scores
from tests.histories.damage import ROT_WAYS, damage_file, list_files_by_kind

METRICS_OPTION = "metric=[dsg,clipscore,edge_density]"
VERIFY_OPTION = "verify=true"
INTACT_STORE_PATTERN = re.compile(r"verify: \d+ cells read, all are intact")


@pytest.fixture(scope="module")
def complete_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a benchmark, all of whose cells are in a store, together with a run made from these cells."""
    bench = Bench(tmp_path_factory.mktemp("whole"), METRICS_OPTION)
    assert bench.run().code == 0
    shutil.copytree(bench.store.place.url, bench.folder / "sound")
    return bench


@pytest.fixture
def bench(complete_bench: Bench) -> Bench:
    """Return the benchmark with its store restored at the same address, because keys contain the address."""
    shutil.rmtree(complete_bench.store.place.url)
    shutil.copytree(complete_bench.folder / "sound", complete_bench.store.place.url)
    return complete_bench


def list_cells(bench: Bench, *stages: str) -> list[Path]:
    """Return the paths of the committed cells of these stages, or of all stages if none are given."""
    found = list_files_by_kind(Path(bench.store.place.url))["cell"]
    return sorted(path for path in found if not stages or path.relative_to(bench.store.place.url).parts[0] in stages)


def read_contents(bench: Bench) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in Path(bench.store.place.url).rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def list_cells_to_repair(ended: FinishedJob) -> set[Path]:
    """Return the paths of the cells that a job reports as damaged or lost."""
    return {Path(path) for path in re.findall(r"(\S+): damaged or lost, will be recomputed", ended.out)}


def read_newest_scores(bench: Bench) -> pd.DataFrame:
    return read_scores(str(bench.runs / str(find_newest_run(bench.store))))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_every_damaged_cell_of_any_stage_is_named_and_computed_again_with_the_same_scores(
    seed: int, bench: Bench
) -> None:
    chance, before = Random(seed), read_newest_scores(bench)
    first = find_newest_run(bench.store)
    harmed = chance.sample(list_cells(bench), 5)
    for path in harmed:
        assert damage_file(path, chance.choice([*ROT_WAYS, "truncate", "empty", "flip"]), chance)
    assert f"nothing changed since run {first}" in bench.run().out, "a sweep with nothing new reads no cells"
    damaged = read_contents(bench)
    looked = bench.run(VERIFY_OPTION, "dry_run=true")
    assert looked.code == 0 and list_cells_to_repair(looked) == set(harmed) and read_contents(bench) == damaged
    assert f"{len(list_cells(bench))} cells read, 5 damaged or lost" in looked.words
    ended = bench.run(VERIFY_OPTION)
    second = find_newest_run(bench.store)
    assert ended.code == 0 and list_cells_to_repair(ended) == set(harmed) and second not in (None, first)
    counts = read_manifest(bench.store, str(second))["counts"]
    assert counts["cells_renewed"] == 5 and counts["cells_failed"] == 0
    pd.testing.assert_frame_equal(read_newest_scores(bench), before, rtol=1e-5)
    assert INTACT_STORE_PATTERN.search(bench.run(VERIFY_OPTION).words) and find_newest_run(bench.store) == second


@pytest.mark.parametrize(("stage", "remade"), [("questions", True), ("scores", True), ("answers", False)])
def test_lost_cells_are_computed_again_unless_they_may_have_been_pruned(stage: str, remade: bool, bench: Bench) -> None:
    lost = list_cells(bench, stage)
    kept = lost.pop(Random(stage).randrange(len(lost)))
    for path in lost:
        path.unlink()
    ended = bench.run(VERIFY_OPTION)
    assert ended.code == 0 and (list_cells_to_repair(ended) | set(lost) if remade else set(lost)) == set(lost)
    assert kept.exists() and all(path.exists() == remade for path in lost)


def test_a_sound_store_stays_unchanged(bench: Bench) -> None:
    before, first = read_contents(bench), find_newest_run(bench.store)
    ended = bench.run(VERIFY_OPTION)
    assert (
        ended.code == 0
        and INTACT_STORE_PATTERN.search(ended.words)
        and f"nothing changed since run {first}" in ended.out
    )
    changed = {path.name for path, content in read_contents(bench).items() if before.get(path) != content}
    assert changed <= {"unchanged.json"} and before.keys() == read_contents(bench).keys()
    assert f"nothing changed since run {first}" in bench.run().out


def test_the_message_about_a_damaged_cell_names_the_command_that_renews_it(bench: Bench) -> None:
    path = Random(3).choice(list_cells(bench, "scores"))
    name = str(path.relative_to(bench.store.place.url))
    assert damage_file(path, "rot", Random(3))
    with pytest.raises(BrokenCellError, match="run the sweep again with verify=true"):
        bench.store.read(name)
    assert bench.run(VERIFY_OPTION).code == 0 and len(bench.store.read(name))


def run_nights(bench: Bench, *more: str) -> FinishedJob:
    return bench.run(*more, job="nightly")


def test_a_night_renews_damaged_cells_and_finds_nothing_worse(bench: Bench) -> None:
    assert run_nights(bench).code == 0
    harmed = Random(8).sample(list_cells(bench), 4)
    for path in harmed:
        assert damage_file(path, "rot", Random(8))
    assert "reported before" in run_nights(bench).out
    ended = run_nights(bench, VERIFY_OPTION)
    assert ended.code == 0 and list_cells_to_repair(ended) == set(harmed) and "reported before" not in ended.out
    again = run_nights(bench, VERIFY_OPTION)
    assert again.code == 0 and INTACT_STORE_PATTERN.search(again.words) and "reported before" in again.out


def list_suite_words(bench: Bench) -> Sequence[str]:
    of = f"benchmarks.own.prompts={bench.folder}/prompts.parquet", f"benchmarks.own.images={bench.folder}/images"
    other = (
        f"benchmarks.shapes.prompts={bench.folder}/prompts.parquet",
        f"benchmarks.shapes.images={bench.folder}/images",
    )
    named_so = "benchmarks.own.name=numbers", "benchmarks.shapes.name=places"
    choice = "sweep=suite", "benchmarks=[own,shapes]", "models=shapes", "metric=[edge_density]", "cluster=here"
    return [*choice, *of, *other, *named_so, f"store={bench.store.place.url}-suite", "shard_rows=4"]


def test_a_suite_verifies_each_of_its_benchmarks(bench: Bench) -> None:
    words = list_suite_words(bench)
    assert run("sweep", *words).code == 0
    store = Path(f"{bench.store.place.url}-suite")
    harmed = Random(2).sample(sorted(list_files_by_kind(store)["cell"]), 3)
    for path in harmed:
        assert damage_file(path, "blank", Random(2))
    ended = run("sweep", *words, VERIFY_OPTION)
    assert ended.code == 0 and list_cells_to_repair(ended) == set(harmed), ended
    again = run("sweep", *words, VERIFY_OPTION)
    assert again.code == 0 and len(INTACT_STORE_PATTERN.findall(again.words)) == 2
