"""A damaged cell is computed anew by whichever command finds it, and the terminal shows that as it shows all else."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from plumbline.jobs import diagnose, nightly, questions, sweep
from plumbline.jobs.command import run_job
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.store import Store
from tests.bench_of import SMALL, write_benchmark

JOBS = {"sweep": sweep, "nightly": nightly, "questions": questions, "diagnose": diagnose}
ADAPTIVE = ("adaptive=betting", "adaptive.range=[0,1]")


class Bench:
    """A benchmark whose cells all stand in a store, those of its diagnosis too."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self.store = Store(StorageConfig().locate(str(store)))

    def run(self, job: str, *overrides: str) -> int:
        given = [f"store={self.store.place.url}", f"benchmark.prompts={self.folder}/prompts.parquet", "sweep=shapes"]
        given += ["benchmark.name=small", "metric=[gecko]", *SMALL]
        given += [] if job == "questions" else [f"benchmark.images={self.folder}/images"]
        return run_job(JOBS[job].COMMAND, JOBS[job].main, [*given, *overrides])

    def flip(self, stage: str) -> None:
        """Changes one bit of every cell of a stage."""
        for path in self.store.files(stage):
            file = Path((self.store.place / path).path)
            content = bytearray(file.read_bytes())
            content[len(content) // 3] ^= 1
            file.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("damaged")
    bench = Bench(write_benchmark(folder / "bench", count=4), folder / "store")
    assert bench.run("diagnose") == 0
    return bench


@pytest.fixture
def bench(whole: Bench, tmp_path: Path) -> Bench:
    shutil.copytree(whole.store.place.url, tmp_path / "store")
    return Bench(whole.folder, tmp_path / "store")


@pytest.mark.parametrize(
    ("job", "stage", "overrides"),
    [
        ("sweep", "scores", ("max_failed=0.5",)),
        ("sweep", "scores", (*ADAPTIVE, "max_failed=0.5")),
        ("nightly", "scores", ("max_failed=0.5",)),
        ("diagnose", "scores", ()),
        ("sweep", "answers", ("metrics.gecko.normalise=false",)),
        ("questions", "questions", ()),
        pytest.param("sweep", "scores", ("max_failed=0.5", "cluster=local"), marks=pytest.mark.slow),
        pytest.param("sweep", "answers", ("metrics.gecko.normalise=false", "cluster=local"), marks=pytest.mark.slow),
    ],
)
def test_a_command_that_finds_damage_shows_its_repair_and_ends_well(
    job: str, stage: str, overrides: Sequence[str], bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.flip(stage)
    assert bench.run(job, *overrides) == 0
    printed = capsys.readouterr().out
    assert not re.search(rf"│ {stage}\S* +│ +\d+ │ +\d+ │ +[1-9]", printed), "the plan takes its cells for cached"
    lines = re.findall(rf"^{stage}\S*: (\d+)/(\d+) cells", printed, flags=re.MULTILINE)
    assert lines and lines[-1][0] == lines[-1][1] != "0", printed
