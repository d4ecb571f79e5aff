"""What the README tells a newcomer to do works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.operators.images import ImageLimits, decode_picture
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.sources.sources import open_sources
from tests.bench_of import images

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RECIPES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_recipe_for_own_images_makes_a_benchmark(tmp_path: Path) -> None:
    for generator in ("sdxl", "flux"):
        for name, row in zip(("p0", "p1"), images("atlas", 2), strict=True):
            file = tmp_path / "outputs" / generator / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row["image"])
    recipe, _ = RECIPES
    subprocess.run([sys.executable, "-c", recipe], cwd=tmp_path, check=True)
    benchmark = BenchmarkConfig(
        name="own", prompts=f"{tmp_path}/data/prompts.parquet", images=f"{tmp_path}/data/images"
    )
    sources = open_sources(benchmark, StorageConfig(), shard_rows=256)
    assert (sources.generators, sources.broken) == (["flux", "sdxl"], [])
    assert [sources.skills.of(prompt) for prompt in ("p0", "p1")] == [("counting",), ("attribute",)]
    for shard in sources.image_shards:
        for row in read_shard(shard, StorageConfig(), IMAGE_COLUMNS).to_pylist():
            assert decode_picture(row, ImageLimits(), Path.read_bytes).size == (96, 96)  # type: ignore[arg-type,union-attr]


def test_the_lines_for_a_notebook_give_scores_with_their_elements(tmp_path: Path) -> None:
    first, second = images("atlas", 2)
    (tmp_path / "first.png").write_bytes(first["image"])
    (tmp_path / "second.png").write_bytes(second["image"])
    _, lines = RECIPES
    assert len([line for line in lines.splitlines() if line]) == 4
    more = "\nassert scores.score.notna().all() and scores.elements[2][0]['score'] is not None and len(scores) == 4"
    subprocess.run(
        [sys.executable, "-c", lines + more], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([A-Za-z/.]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize(("page", "least"), [("security", 20), ("reliability", 10)])
def test_every_promise_of_a_page_names_tests_that_exist(page: str, least: int) -> None:
    """A promise is a row whose table ends in a column `test`."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    tables = re.findall(r"^\|.*\| test \|\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    promises = [line for table in tables for line in table.splitlines()]
    for promise in promises:
        named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_[a-z0-9_]+)`", promise)
        assert named, promise
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
    assert len(promises) > least


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert named & {"sweep", "test", "bench", "train", "check"} <= targets
    assert {"sweep", "test"} <= named
