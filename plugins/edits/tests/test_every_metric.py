"""Every named metric for edits scores images with tiny checkpoints; rows without a score have a reason."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from plumbline.plugins.edits import CONF
from tests.bench_of import run_bench, write_benchmark
from tests.operators import tiny
from tests.operators.tiny.roles import save_tiny_models

METRIC_NAMES = sorted(file.stem for file in CONF.glob("metric/*.yaml"))
JUDGE_NAMES = {"viescore_edit", "editscore", "imgedit"}
"""Metrics whose judge has random weights in this test, so that its replies cannot be parsed."""
COLUMN_BY_ROLE = {"source": "image", "source_caption": "image_id", "target_caption": "prompt_id"}
"""Columns for sources and captions; every image is its own source."""


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    folder = tmp_path_factory.mktemp("edits")
    models = [word for word in save_tiny_models(folder / "models") if not word.startswith("+models.vlm=")]
    judge = f"+models.vlm={{family: vlm, checkpoint: {tiny.save_qwen2_vl(folder / 'vlm')}}}"
    columns = [f"benchmark.columns.{name}={column}" for name, column in COLUMN_BY_ROLE.items()]
    bench = write_benchmark(folder / "bench", ["atlas"], count=4)
    finished = run_bench(bench, folder / "store", f"metric=[{','.join(METRIC_NAMES)}]", *models, judge, *columns)
    rows = defaultdict(list)
    for row in finished.results.read_scores().to_pylist():
        rows[row["metric"]].append(row)
    return rows


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_metric_scores_images_with_a_checkpoint_of_its_family(
    name: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    rows = scores[name]
    assert len(rows) == 4 and all((row["score"] is None) == (row["error"] is not None) for row in rows)
    assert any(row["score"] is not None for row in rows) != (name in JUDGE_NAMES), rows[0]["error"]
