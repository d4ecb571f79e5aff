"""Every command that finds a damaged cell computes it again, and the terminal reports it like all other events."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench_of import Bench

ADAPTIVE_OPTIONS = ("adaptive=betting", "adaptive.range=[0,1]")


@pytest.fixture(scope="module")
def complete_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Score a benchmark completely, so that the store contains all its cells."""
    bench = Bench(tmp_path_factory.mktemp("damaged"), "metric=[gecko]", count=4)
    assert bench.run().code == 0
    return bench


@pytest.mark.parametrize(
    ("job", "stage", "overrides"),
    [
        ("sweep", "scores", ("max_failed=0.5",)),
        ("sweep", "scores", (*ADAPTIVE_OPTIONS, "max_failed=0.5")),
        ("nightly", "scores", ("max_failed=0.5",)),
        ("sweep", "answers", ("metrics.gecko.normalise=false",)),
        ("questions", "questions", ("benchmark.images=null",)),
        pytest.param("sweep", "scores", ("max_failed=0.5", "cluster=local"), marks=pytest.mark.slow),
        pytest.param("sweep", "answers", ("metrics.gecko.normalise=false", "cluster=local"), marks=pytest.mark.slow),
    ],
)
def test_a_command_that_finds_damage_reports_its_repair_and_succeeds(
    job: str, stage: str, overrides: Sequence[str], complete_bench: Bench, tmp_path: Path
) -> None:
    assert_repaired(complete_bench.copy_to(tmp_path), job, stage, *overrides)


def assert_repaired(bench: Bench, job: str, stage: str, *overrides: str) -> None:
    """Damage a cell of the stage, run the job, and assert that the job reports the repair."""
    bench.flip(stage)
    code, printed, _ = bench.run(*overrides, job=job)
    assert code == 0
    assert not re.search(rf"│ {stage}\S* +│ +\d+ │ +\d+ │ +[1-9]", printed), (
        "the plan counts its damaged cells as cached"
    )
    lines = re.findall(rf"^{stage}\S*: (\d+)/(\d+) cells", printed, flags=re.MULTILINE)
    assert lines and lines[-1][0] == lines[-1][1] != "0", printed
