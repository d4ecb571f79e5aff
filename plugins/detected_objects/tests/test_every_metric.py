"""Every metric of the plugin scores images of shapes with tiny checkpoints, both in a sweep and with a scorer."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from plumbline.operators.scoring.scorer import Scorer
from plumbline.plugins.detected_objects import CONF
from tests.bench_of import read_prompt_rows, run_bench, write_benchmark
from tests.commands import load_job_config
from tests.jobs.test_every_metric import Rows, assert_scorer_equals_sweep
from tests.operators.tiny import draw_image
from tests.operators.tiny.roles import save_tiny_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    return save_tiny_models(tmp_path_factory.mktemp("models"))


def write_pack(path: Path, count: int = 4) -> Path:
    """Write a line of GenEval's file for each of the first prompts of the embedded benchmark."""
    first, second = {"class": "circle", "count": 1, "color": "red"}, {"class": "square", "count": 1}
    clauses = [first, {**second, "position": ["above", 0]}]
    lines = [{"tag": "position", "include": clauses, "prompt": row["text"]} for row in read_prompt_rows(count)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_geneval_scores_images_in_a_sweep_and_with_a_scorer(models: Sequence[str], tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "evaluation_metadata.jsonl")
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    words = ["metric=[geneval]", "benchmark.question_pack=geneval", f"benchmark.questions={pack}", *models]
    rows: Rows = run_bench(bench, tmp_path / "store", *words).results.read_scores().to_pylist()
    assert len(rows) == 4 and all(row["score"] in (0, 1) for row in rows), rows[0]["error"]
    assert_scorer_equals_sweep({"geneval": rows}, "geneval", pack, models)


PROMPTS = {
    "compbench_spatial": "a horse on the right of a car",
    "compbench_numeracy": "two horses and one car",
}
"""A prompt that each metric without a pack can score, by metric."""


def test_the_other_metrics_score_an_image_in_python(models: Sequence[str]) -> None:
    config = load_job_config("scorer", f"metric=[{','.join(PROMPTS)}]", "models=shapes", *models)
    scorer, image = Scorer(config), draw_image(0)
    for name, prompt in PROMPTS.items():
        scored = {row["metric"]: row for row in scorer.score_table([image], [prompt]).to_pylist()}
        assert scored[name]["error"] is None and 0 <= scored[name]["score"] <= 1


def test_every_metric_of_the_plugin_is_tested() -> None:
    parsing = {"compbench_action", "compbench_attributes"}  # test_compbench_attributes.py; they need spaCy
    assert {file.stem for file in (CONF / "metric").glob("*.yaml")} == {"geneval", *PROMPTS, *parsing}
