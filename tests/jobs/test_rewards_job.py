"""The command that makes training data, as a newcomer runs it."""

import shutil
from pathlib import Path

import pytest

from plumbline.jobs.command import run_job
from plumbline.jobs.rewards import COMMAND, main
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.runs import newest_run
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import sweep_config, write_benchmark

PAGE = (Path(__file__).parent.parent.parent / "docs/rewards.md").read_text()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_benchmark(tmp_path_factory.mktemp("rewards-job") / "bench")
    score(folder, folder.parent / "store", "metric=[clipscore]")
    return folder.parent / "store"


def score(bench: Path, store: Path, *overrides: str) -> None:
    """A sweep without Ray."""
    run_sweep(plan_sweep(sweep_config(bench, store, "cluster=here", *overrides)), lambda progress: None)


def test_the_pages_command_makes_pairs_and_says_where_they_are(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(line for line in PAGE.splitlines() if "jobs.rewards" in line and "format=pairs" in line)
    _, _, arguments = line.partition("-m jobs.rewards ")
    given = [one for one in arguments.split("#")[0].split() if not one.startswith("output=")]
    options = [*given, f"store={store}", f"output={tmp_path}/pairs"]
    assert run_job(COMMAND, main, options) == 0
    said = capsys.readouterr().out
    assert "train-00000-of-00001: " in said and f"written to {tmp_path}/pairs/" in said
    assert run_job(COMMAND, main, options) == 0
    assert f"stands already in {tmp_path}/pairs/" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["format=pair"], "format: expected one of pairs, "),
        (["format=pairs", "metrics=[tifa]"], "metrics: the run has no 'tifa'; it has clipscore"),
        (["format=pairs", "run=yesterday"], "run=yesterday: no such run"),
        (["format=pairs", "selection.margin=wide"], "config key 'selection.margin': "),
        ([], "config key 'format' is required"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line(
    options: list[str], complaint: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(COMMAND, main, [*options, f"store={store}", f"output={tmp_path}/out"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {complaint}") and not (tmp_path / "out").exists()


def test_the_same_command_every_night_exports_each_run_to_a_folder_of_its_own(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = shutil.copytree(store, tmp_path / "store")
    options = ["run=latest", "format=rewards", "metrics=[clipscore]", f"store={nights}"]
    first = newest_run(Store(StorageConfig().locate(str(nights))))
    for output in ("each/@run", "one"):
        assert run_job(COMMAND, main, [*options, f"output={tmp_path}/{output}"]) == 0
    score(store.parent / "bench", nights, "metric=[clipscore,saturation]")
    second = newest_run(Store(StorageConfig().locate(str(nights))))
    assert [run_job(COMMAND, main, [*options, f"output={tmp_path}/each/@run"]) for _ in range(2)] == [0, 0]
    assert f"stands already in {tmp_path}/each/{second}/" in capsys.readouterr().out
    assert {folder.name for folder in (tmp_path / "each").iterdir()} == {first, second} and first != second
    assert run_job(COMMAND, main, [*options, f"output={tmp_path}/one"]) == 1
    said = capsys.readouterr().err
    assert f"holds the export of run {first}, and this is of run {second}" in said and "/@run" in said


def test_weights_of_metrics_are_given_by_name(store: Path, tmp_path: Path) -> None:
    options = ["format=rewards", "metrics={clipscore: 2}", f"store={store}", f"output={tmp_path}/out"]
    assert run_job(COMMAND, main, options) == 0
    assert (tmp_path / "out" / "manifest.json").exists()
