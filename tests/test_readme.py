"""The README's promises to a new user hold."""

import re
from pathlib import Path
from typing import Any

import pytest

from plumbline.jobs.table import JOBS
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_row_image
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.shards import read_shard
from tests.bench_of import list_sources, read_image_rows

ROOT = Path(__file__).parent.parent
README_TEXT = (ROOT / "README.md").read_text()
(README_CODE,) = re.findall(r"```python\n(.*?)```", README_TEXT, flags=re.DOTALL)
(INGEST_RECIPE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/images.md").read_text(), flags=re.DOTALL)


def test_the_recipe_for_ones_own_images_makes_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for generator in ("sdxl", "flux"):
        for name, row in zip(("p0", "p1"), read_image_rows("atlas", 2), strict=True):
            file = tmp_path / "outputs" / generator / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row["image"])
    monkeypatch.chdir(tmp_path)
    exec(INGEST_RECIPE, {})
    benchmark = BenchmarkConfig(
        name="own", prompts=f"{tmp_path}/data/prompts.parquet", images=f"{tmp_path}/data/images"
    )
    sources = list_sources(benchmark)
    assert (sources.generators, sources.broken) == (["flux", "sdxl"], [])
    assert [sources.skills.find(prompt) for prompt in ("p0", "p1")] == [("counting",), ("attribute",)]
    for shard in sources.image_shards:
        for row in read_shard(shard, IMAGE_COLUMNS).to_pylist():
            assert decode_row_image(row, ImageLimits(), Path.read_bytes).size == (96, 96)  # type: ignore[arg-type,union-attr]


def test_four_lines_of_python_score_two_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in zip(("first", "second"), read_image_rows("atlas", 2), strict=True):
        (tmp_path / f"{name}.png").write_bytes(row["image"])
    assert len([line for line in README_CODE.splitlines() if line]) <= 4
    monkeypatch.chdir(tmp_path)
    exec(README_CODE, made := dict[str, Any]())
    scores = made["scores"]
    assert scores.score.notna().all() and scores.prompt.tolist() == ["three red circles", "a blue square"]


def test_the_first_page_is_short_and_names_every_job_and_every_metric() -> None:
    assert len(README_TEXT.splitlines()) <= 150
    named = set(re.findall(r"`([a-z0-9_]+)`", README_TEXT))
    jobs = set(JOBS)
    assert jobs - named == set()
    metrics = {path.stem for path in (ROOT / "conf/metric").glob("*.yaml")}
    variants = {name for name in metrics for other in metrics if name.startswith(f"{other}_")}
    assert metrics - variants - named == set()
