"""Edited images beside their sources: in a sweep, in the scorer, and what is refused before anything runs."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plumbline.operators.errors import ConfigError
from plumbline.operators.metrics.source_comparison import SourceComparisonConfig
from plumbline.operators.scorer import Scorer, ScorerConfig
from plumbline.operators.stages.source_comparisons import compare_with_source
from tests.bench_of import images, plan_bench, run_bench, run_tables, write_benchmark, write_rows

METRICS = "metric=[source_l1,source_ssim]"
SOURCE, URI = "benchmark.columns.source=before", "benchmark.columns.source_uri=from"


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def noise(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_edits(folder: Path, sources: list[Any], column: str = "before") -> Path:
    write_benchmark(folder, ["atlas"], len(sources))
    rows = [{**row, column: source} for row, source in zip(images("atlas", len(sources)), sources, strict=True)]
    write_rows(folder / "images" / "atlas" / "00000.parquet", rows)
    return folder


def scores_of(folder: Path, store: Path, *more: str) -> Any:
    scores = run_tables(run_bench(folder, store, METRICS, *more))["scores"]
    return scores.pivot(index="image_id", columns="metric", values="score")


def test_a_sweep_compares_each_image_with_its_source_as_the_scorer_does(tmp_path: Path) -> None:
    own = [row["image"] for row in images("atlas", 4)]
    given = [*own[:3], png(noise(1))]
    folder = write_edits(tmp_path / "bench", given)
    found = scores_of(folder, tmp_path / "store", SOURCE)
    assert found["source_l1"].tolist()[:3] == [0, 0, 0] and found["source_ssim"].tolist()[:3] == pytest.approx([1] * 3)
    metrics = {f"source_{name}": SourceComparisonConfig(comparison=name) for name in ("l1", "ssim")}
    table = Scorer(ScorerConfig(models={}, metrics=metrics)).score(own, "an edit", sources=given)
    assert found[["source_l1", "source_ssim"]].to_numpy().T.ravel() == pytest.approx(table["score"].to_pylist())


def test_another_source_of_the_same_image_is_another_score(tmp_path: Path) -> None:
    one, other = png(noise(1)), png(noise(2))
    first = scores_of(write_edits(tmp_path / "bench", [one] * 4), tmp_path / "store", SOURCE)
    second = scores_of(write_edits(tmp_path / "bench", [one] * 3 + [other]), tmp_path / "store", SOURCE)
    same = (first == second).all(axis=1).tolist()
    assert same == [True] * 3 + [False]


def test_a_source_at_an_address_is_read_and_a_changed_file_renews_the_cell(tmp_path: Path) -> None:
    (tmp_path / "bench" / "images").mkdir(parents=True)
    address = tmp_path / "bench" / "images" / "before.png"
    address.write_bytes(png(noise(1)))
    folder = write_edits(tmp_path / "bench", [str(address)] * 4, "from")
    first = scores_of(folder, tmp_path / "store", URI)
    assert not plan_bench(folder, tmp_path / "store", METRICS, URI).plan.missing
    address.write_bytes(png(noise(2, 50)))
    assert (scores_of(folder, tmp_path / "store", URI) != first).to_numpy().all()


def test_a_source_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    huge = png(Image.new("RGB", (700, 20)))
    folder = write_edits(tmp_path / "bench", [b"nonsense", None, huge, png(noise(1, 8, 8))])
    tables = run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1]", SOURCE))
    assert tables["scores"]["score"].isna().all()
    errors = tables["errors"].sort_values("row")
    assert errors["kind"].tolist() == ["corrupt_image", "missing_image", "image_too_large", "image_too_small"]
    assert all("source" in message for message in errors["message"])


def test_two_sources_are_not_compared_with(tmp_path: Path) -> None:
    scorer = Scorer(ScorerConfig(models={}, metrics={"l1": SourceComparisonConfig(comparison="l1")}))
    (row,) = scorer.score(noise(1), "an edit", sources=[[noise(1), noise(2)]]).to_pylist()
    assert row["score"] is None and row["error"]["message"].startswith("2 sources in the row")


def test_sources_that_are_wanted_and_absent_are_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench")
    with pytest.raises(ConfigError, match=r"metrics\.source_l1: .* benchmark\.columns\.source,"):
        plan_bench(folder, tmp_path / "store", METRICS)
    with pytest.raises(ConfigError, match=r"column\(s\) before"):
        plan_bench(folder, tmp_path / "store", METRICS, SOURCE)
    scorer = Scorer(ScorerConfig(models={}, metrics={"l1": SourceComparisonConfig(comparison="l1")}))
    with pytest.raises(ConfigError, match="give the image that each was edited from"):
        scorer.score(noise(1), "an edit")
    with pytest.raises(ConfigError, match="got 1 images and 2 sources"):
        scorer.score(noise(1), "an edit", sources=[noise(1), noise(2)])


def test_a_column_called_source_is_no_source_unless_it_is_named(tmp_path: Path) -> None:
    plain = plan_bench(write_benchmark(tmp_path / "a", ["atlas"]), tmp_path / "store", "metric=[saturation]").sources
    folder = write_edits(tmp_path / "b", ["nowhere.png"] * 8, "source_uri")
    other = plan_bench(folder, tmp_path / "store", "metric=[saturation]").sources
    assert [shard.objects for shard in plain.image_shards] == [shard.objects for shard in other.image_shards]
    assert all(shard.columns == () for shard in other.image_shards)


@pytest.mark.parametrize("seed", [0, 1])
def test_comparisons_are_those_of_the_plain_formula(seed: int) -> None:
    image, source = noise(seed, 17, 14), noise(seed + 5, 17, 14)
    found = compare_with_source(image, source)
    x, y = (np.asarray(one.convert("L"), float) for one in (image, source))
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for top, left in np.ndindex(14 - 10, 17 - 10):
        a, b = (one[top : top + 11, left : left + 11] for one in (x, y))
        mean_a, mean_b = (window * a).sum(), (window * b).sum()
        var_a, var_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
        covariance = (window * (a - mean_a) * (b - mean_b)).sum()
        above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
        values.append(above / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)))
    assert found.ssim == pytest.approx(np.mean(values), abs=1e-9)
    l1 = np.abs(np.asarray(image, float) - np.asarray(source, float)).mean() / 255
    assert found.l1 == pytest.approx(l1)
