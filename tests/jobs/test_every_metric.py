"""Every metric that has a name scores images of the shapes with tiny checkpoints; a row without a score says why."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import sweep_config, write_benchmark
from tests.operators.tiny.roles import tiny_models
from tests.question_packs import write_pack

ROOT = Path(__file__).parent.parent.parent
NAMES = sorted(file.stem for file in (ROOT / "conf/metric").glob("*.yaml"))

OPTIONS = {"vpeval": ["metrics.vpeval.replies=json", "metrics.vpeval.max_tokens=512"]}
"""What the pack's writer needs for a form that it has not learnt."""
PACKS = {
    "dpg_bench": "dpg_bench",
    "dpg_bench_levels": "dpg_bench",
    "dsg_1k": "dsg_1k",
    "geneval2": "geneval2",
    "geneval2_am": "geneval2",
    "oneig": "oneig",
    "tifa_v1": "tifa_v1",
    "unigenbench": "unigenbench",
    "wise_verified": "wise_verified",
}
"""Of metrics that score by a benchmark's own questions, whose these are."""
SCORELESS = {"vq2_released"}
"""Whose phrases are drawn at a temperature of 1, where the pack's writer says nothing readable."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_scores_images_with_a_checkpoint_of_its_family(
    name: str, models: list[str], bench: Path, tmp_path: Path
) -> None:
    given = [f"metric=[{name}]", *models, *OPTIONS.get(name, [])]
    if name in PACKS:
        questions = write_pack(PACKS[name], tmp_path)
        given += [f"benchmark.question_pack={PACKS[name]}", f"benchmark.questions={questions}"]
    planned = plan_sweep(sweep_config(bench, tmp_path / "store", *given))
    finished = run_sweep(planned, lambda progress: None)
    (metric,) = planned.config.metrics
    scores = pq.read_table(Path(finished.folder) / "scores.parquet").to_pylist()
    assert [row["metric"] for row in scores] == [metric] * 4
    assert all((row["score"] is None) == (row["error"] is not None) for row in scores)
    scored = [row for row in scores if row["score"] is not None]
    assert bool(scored) != (name in SCORELESS), scores[0]["error"]
