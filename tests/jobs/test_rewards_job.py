"""The command that exports training data works as documented for a new user."""

import shutil
from pathlib import Path

import pytest

from plumbline.pipelines.store.runs import find_newest_run
from tests.bench_of import run_bench, write_benchmark
from tests.commands import open_store_at, run, run_for_output, run_refused

PAGE_TEXT = (Path(__file__).parent.parent.parent / "docs/rewards.md").read_text()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_benchmark(tmp_path_factory.mktemp("rewards-job") / "bench")
    score(folder, folder.parent / "store", "metric=[clipscore]")
    return folder.parent / "store"


def score(bench: Path, store: Path, *overrides: str) -> None:
    run_bench(bench, store, "cluster=here", *overrides)


def test_the_pages_command_makes_pairs_and_prints_their_address(store: Path, tmp_path: Path) -> None:
    line = next(line for line in PAGE_TEXT.splitlines() if "plumbline rewards " in line and "format=pairs" in line)
    _, _, arguments = line.partition("plumbline rewards ")
    given = [one for one in arguments.split("#")[0].split() if not one.startswith("output=")]
    options = [*given, f"store={store}", f"output={tmp_path}/pairs"]
    said = run_for_output("rewards", *options)
    assert "train-00000-of-00001: " in said and f"written to {tmp_path}/pairs/" in said
    assert f"exists already in {tmp_path}/pairs/" in run_for_output("rewards", *options)


def test_a_note_about_images_in_many_pairs_names_its_own_remedy(tmp_path: Path) -> None:
    generators = ["atlas", "borealis", "cobalt", "drift", "ember", "flint", "garnet"]
    score(write_benchmark(tmp_path / "bench", generators), tmp_path / "store", "metric=[clipscore]")
    options = ["format=pairs", "reward=clipscore", "selection.margin=0", f"output={tmp_path}/pairs"]
    said = " ".join(run_for_output("rewards", "run=latest", f"store={tmp_path}/store", *options).split())
    assert "examples on average" in said and "set selection.per_prompt=N" in said and "settings=ignore" not in said


def test_the_same_command_every_night_exports_each_run_to_a_separate_folder(store: Path, tmp_path: Path) -> None:
    nights = shutil.copytree(store, tmp_path / "store")
    options = ["run=latest", "format=rewards", "reward=clipscore", f"store={nights}"]
    first = find_newest_run(open_store_at(nights))
    for output in ("each/@run", "one"):
        assert run("rewards", *options, f"output={tmp_path}/{output}").code == 0
    score(store.parent / "bench", nights, "metric=[clipscore,saturation]")
    second = find_newest_run(open_store_at(nights))
    said = [run_for_output("rewards", *options, f"output={tmp_path}/each/@run") for _ in range(2)]
    assert f"exists already in {tmp_path}/each/{second}/" in said[1]
    assert {folder.name for folder in (tmp_path / "each").iterdir()} == {first, second} and first != second
    said = run_refused("rewards", *options, f"output={tmp_path}/one", code=1)
    assert f"contains the export of run {first}, but this is run {second}" in said and "/@run" in said


def test_weights_of_metrics_are_given_by_name(store: Path, tmp_path: Path) -> None:
    options = ["format=rewards", "reward={clipscore: 2}", f"store={store}", f"output={tmp_path}/out"]
    assert run("rewards", *options).code == 0
    assert (tmp_path / "out" / "manifest.json").exists()
