"""Edited images are compared with their sources in a sweep and in the scorer; invalid configurations are rejected."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.plugins.edits.source_comparison import SourceComparisonConfig
from plumbline.plugins.edits.source_comparisons_stage import compare_with_source
from tests.bench_of import (
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    read_run_tables,
    run_bench,
    run_plan,
    write_benchmark,
    write_rows,
)

METRICS_OPTION = "metric=[source_l1,source_l2,source_ssim,source_psnr]"
SOURCE_OPTION, URI_OPTION = "benchmark.columns.source=before", "benchmark.columns.source_uri=from"
MASK_OPTION = "benchmark.columns.mask=where"


def encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def draw_noise(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def draw_mask(white: range, width: int = 40, height: int = 30) -> Image.Image:
    mask = Image.new("L", (width, height))
    mask.paste(255, (white.start, 0, white.stop, height))
    return mask


def write_edits(folder: Path, sources: list[Any], column: str = "before", **more_columns: list[Any]) -> Path:
    write_benchmark(folder, ["atlas"], len(sources))
    columns = {column: sources, **more_columns}
    rows = [
        {**row, **{name: values[place] for name, values in columns.items()}}
        for place, row in enumerate(read_image_rows("atlas", len(sources)))
    ]
    write_rows(folder / "images" / "atlas" / "00000.parquet", rows)
    return folder


def compute_scores(folder: Path, store: Path, *more: str) -> Any:
    return pivot_scores(read_run_tables(run_bench(folder, store, METRICS_OPTION, *more)))


def pivot_scores(tables: Any) -> Any:
    scores = tables["scores"].pivot(index="image_id", columns="metric", values="score")
    return scores.loc[[row["image_id"] for row in read_image_rows("atlas", len(scores))]]


def test_a_sweep_compares_each_image_with_its_source_as_the_scorer_does(tmp_path: Path) -> None:
    own = [row["image"] for row in read_image_rows("atlas", 4)]
    given = [*own[:3], encode_png(draw_noise(1))]
    folder = write_edits(tmp_path / "bench", given)
    found = compute_scores(folder, tmp_path / "store", SOURCE_OPTION)
    assert found["source_l1"].tolist()[:3] == [0, 0, 0] and found["source_ssim"].tolist()[:3] == pytest.approx([1] * 3)
    assert found["source_psnr"].tolist()[:3] == [100] * 3, "the ratio of equal images, which is infinite, is cut"
    assert found["source_psnr"].iloc[3] == pytest.approx(-10 * np.log10(found["source_l2"].iloc[3]))
    metrics = {f"source_{name}": SourceComparisonConfig(comparison=name) for name in ("l1", "l2", "ssim", "psnr")}
    table = Scorer(ScorerConfig(models={}, metrics=metrics)).score_table(own, "an edit", sources=given)
    assert found[list(metrics)].to_numpy().T.ravel() == pytest.approx(table["score"].to_pylist())


def test_a_changed_source_changes_the_score_of_its_image(tmp_path: Path) -> None:
    one, other = encode_png(draw_noise(1)), encode_png(draw_noise(2))
    first = compute_scores(write_edits(tmp_path / "bench", [one] * 4), tmp_path / "store", SOURCE_OPTION)
    second = compute_scores(write_edits(tmp_path / "bench", [one] * 3 + [other]), tmp_path / "store", SOURCE_OPTION)
    same = (first == second).all(axis=1).tolist()
    assert same == [True] * 3 + [False]


def test_a_source_is_read_from_its_uri_and_a_changed_file_is_scored_again(tmp_path: Path) -> None:
    (tmp_path / "bench" / "images").mkdir(parents=True)
    address = tmp_path / "bench" / "images" / "before.png"
    address.write_bytes(encode_png(draw_noise(1)))
    folder = write_edits(tmp_path / "bench", [str(address)] * 4, "from")
    first = compute_scores(folder, tmp_path / "store", URI_OPTION)
    assert not plan_bench(folder, tmp_path / "store", METRICS_OPTION, URI_OPTION).plan.missing
    address.write_bytes(encode_png(draw_noise(2, 50)))
    assert (compute_scores(folder, tmp_path / "store", URI_OPTION) != first).to_numpy().all()


def test_an_unusable_source_is_an_error_about_the_source(tmp_path: Path) -> None:
    huge = encode_png(Image.new("RGB", (700, 20)))
    folder = write_edits(tmp_path / "bench", [b"nonsense", None, huge, encode_png(draw_noise(1, 8, 8))])
    tables = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1]", SOURCE_OPTION))
    assert tables["scores"]["score"].isna().all()
    errors = tables["errors"].sort_values("row")
    assert errors["kind"].tolist() == ["corrupt_image", "missing_image", "image_too_large", "image_too_small"]
    assert all(message.startswith("the source of the edit: ") for message in errors["message"])


def test_only_pixels_outside_the_mask_are_compared(tmp_path: Path) -> None:
    """Each source differs from its image only in the right quarter, which is grey."""
    own = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in read_image_rows("atlas", 4)]
    width, height = own[0].size
    sources = [image.copy() for image in own]
    for image in sources:
        flat = Image.new("RGB", (width // 4, height), (102, 102, 102))
        image.paste(flat, (width - width // 4, 0))
    edge = range(width - width // 4, width)
    masks = [draw_mask(white, width, height) for white in (edge, range(0), range(width // 2), edge)]
    folder = write_edits(tmp_path / "bench", [*map(encode_png, sources)], where=[*map(encode_png, masks)])
    found = compute_scores(folder, tmp_path / "store", SOURCE_OPTION, MASK_OPTION)
    whole = compute_scores(folder, tmp_path / "other", SOURCE_OPTION)
    assert found.loc[found.index[[0, 3]], ["source_l1", "source_l2"]].to_numpy().tolist() == [[0, 0], [0, 0]]
    assert found["source_ssim"].iloc[[0, 3]].tolist() == pytest.approx([1, 1])
    assert found.iloc[1].tolist() == whole.iloc[1].tolist()
    assert found["source_l1"].iloc[2] == pytest.approx(2 * whole["source_l1"].iloc[2])


def test_a_changed_mask_only_changes_its_row_and_pixels_inside_the_mask_do_not_count(tmp_path: Path) -> None:
    source, left, right = (encode_png(one) for one in (draw_noise(1), draw_mask(range(20)), draw_mask(range(20, 40))))
    folder = write_edits(tmp_path / "bench", [source] * 4, where=[left] * 4)
    first = compute_scores(folder, tmp_path / "store", SOURCE_OPTION, MASK_OPTION)
    write_edits(folder, [source] * 4, where=[*[left] * 3, right])
    second = compute_scores(folder, tmp_path / "store", SOURCE_OPTION, MASK_OPTION)
    assert (first == second).all(axis=1).tolist() == [True] * 3 + [False]
    edited, again = draw_noise(2), draw_noise(2)
    again.paste(draw_noise(3), (0, 0), draw_mask(range(20)))
    assert again != edited and compare_with_source(edited, draw_noise(1), draw_mask(range(20))) == compare_with_source(
        again, draw_noise(1), draw_mask(range(20))
    )


def test_an_unusable_mask_is_an_error_about_the_mask_and_affects_no_other_metric(tmp_path: Path) -> None:
    masks = [
        b"nonsense",
        None,
        encode_png(draw_mask(range(9), 20, 30)),
        encode_png(draw_mask(range(40))),
        encode_png(draw_noise(4)),
        encode_png(draw_mask(range(9))),
    ]
    folder = write_edits(tmp_path / "bench", [encode_png(draw_noise(1))] * 6, where=masks)
    tables = read_run_tables(
        run_bench(folder, tmp_path / "store", "metric=[source_l2,saturation]", SOURCE_OPTION, MASK_OPTION)
    )
    scores = pivot_scores(tables)
    assert scores["source_l2"].isna().tolist() == [True] * 5 + [False] and scores["saturation"].notna().all()
    errors = tables["errors"].sort_values("row")
    assert errors["kind"].tolist() == ["corrupt_image", "missing_image", *["unusable_mask"] * 3]
    assert all("mask" in message for message in errors["message"])


def test_a_mask_without_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark\.columns\.mask: .* set benchmark\.columns\.source"):
        plan_bench(write_benchmark(tmp_path), tmp_path / "store", "metric=[saturation]", MASK_OPTION)


def test_an_image_with_two_sources_is_not_compared(tmp_path: Path) -> None:
    scorer = Scorer(ScorerConfig(models={}, metrics={"l1": SourceComparisonConfig(comparison="l1")}))
    (row,) = scorer.score_table(draw_noise(1), "an edit", sources=[[draw_noise(1), draw_noise(2)]]).to_pylist()
    assert row["score"] is None and row["error"]["message"].startswith("the source of the edit: 2 images")


def test_a_bad_source_only_affects_the_metrics_that_read_it(tmp_path: Path) -> None:
    metrics = {
        "ssim": SourceComparisonConfig(comparison="ssim"),
        "saturation": ImageStatisticConfig(statistic="saturation"),
    }
    limits = ImageLimits(max_pixels=80 * 30)
    scorer = Scorer(ScorerConfig(models={}, metrics=metrics, limits=limits))
    sources = [
        None,
        b"no image",
        tmp_path / "nowhere.png",
        draw_noise(1, 81),
        [draw_noise(1), draw_noise(2)],
        draw_noise(1),
    ]
    rows = scorer.score_table([draw_noise(3)] * len(sources), "an edit", sources=sources).to_pylist()
    ssim, saturation = ([row for row in rows if row["metric"] == name] for name in metrics)
    kinds = [row["error"] and row["error"]["kind"] for row in ssim]
    assert kinds == ["missing_image", "corrupt_image", "missing_image", "image_too_large", "too_many_images", None]
    assert all((row["score"] is None) == (row["error"] is not None) for row in ssim)
    assert {row["score"] for row in saturation} == {saturation[0]["score"]} != {None}


def test_missing_sources_are_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench")
    with pytest.raises(ConfigError, match=r"metrics\.source_l1: .* benchmark\.columns\.source to"):
        plan_bench(folder, tmp_path / "store", METRICS_OPTION)
    with pytest.raises(ConfigError, match=r"column\(s\) before"):
        plan_bench(folder, tmp_path / "store", METRICS_OPTION, SOURCE_OPTION)
    scorer = Scorer(ScorerConfig(models={}, metrics={"l1": SourceComparisonConfig(comparison="l1")}))
    with pytest.raises(ConfigError, match="pass the image that each was edited from"):
        scorer.score_table(draw_noise(1), "an edit")
    with pytest.raises(ConfigError, match="got 1 images and 2 sources"):
        scorer.score_table(draw_noise(1), "an edit", sources=[draw_noise(1), draw_noise(2)])


def test_a_column_named_source_uri_is_only_read_if_it_is_configured(tmp_path: Path) -> None:
    plain = plan_bench(write_benchmark(tmp_path / "a", ["atlas"]), tmp_path / "store", "metric=[saturation]").sources
    folder = write_edits(tmp_path / "b", ["nowhere.png"] * 8, "source_uri")
    other = plan_bench(folder, tmp_path / "store", "metric=[saturation]").sources
    assert [shard.objects for shard in plain.image_shards] == [shard.objects for shard in other.image_shards]
    assert all(shard.columns == () for shard in other.image_shards)


@pytest.mark.parametrize("seed", [0, 1])
def test_comparisons_equal_those_of_a_direct_implementation(seed: int) -> None:
    image, source = draw_noise(seed, 17, 14), draw_noise(seed + 5, 17, 14)
    mask = draw_mask(range(9, 17), 17, 14) if seed else None
    found = compare_with_source(image, source, mask)
    kept = np.asarray(draw_mask(range(9, 17) if seed else range(0), 17, 14)) == 0
    x, y = (np.asarray(one.convert("L"), float) for one in (image, source))
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for top, left in np.ndindex(14 - 10, 17 - 10):
        if not kept[top + 5, left + 5]:
            continue
        a, b, inside = (one[top : top + 11, left : left + 11] for one in (x, y, kept))
        weights = window * inside / (window * inside).sum()
        mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
        var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
        covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
        above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
        values.append(above / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)))
    assert found.ssim == pytest.approx(np.mean(values), abs=1e-9)
    difference = (np.asarray(image, float) - np.asarray(source, float))[kept] / 255
    assert (found.l1, found.l2) == pytest.approx((np.abs(difference).mean(), (difference**2).mean()))


def write_prompts(folder: Path, sources: list[Any]) -> None:
    rows = [{**row, "before": source} for row, source in zip(read_prompt_rows(len(sources)), sources, strict=True)]
    write_rows(folder / "prompts.parquet", rows[::-1], row_group=2)


def write_prompt_sources(folder: Path, sources: list[Any]) -> Path:
    """Write images from two generators, without sources; the prompts contain the sources for both."""
    write_benchmark(folder, ["atlas", "flint"], len(sources))
    write_prompts(folder, sources)
    return folder


def test_sources_in_the_prompts_file_apply_to_the_images_of_all_generators(tmp_path: Path) -> None:
    folder = write_prompt_sources(tmp_path / "bench", [row["image"] for row in read_image_rows("atlas", 4)])
    planned = plan_bench(folder, tmp_path / "store", "metric=[source_l1]", SOURCE_OPTION)
    assert f"sources: the column 'before' of {folder}/prompts.parquet" in planned.sources.origin_lines
    scores = read_run_tables(run_plan(planned))["scores"].pivot(index="prompt_id", columns="generator", values="score")
    assert (scores["atlas"] == 0).all() and (scores["flint"] > 0).all() and len(scores) == 4


def test_sources_in_the_image_table_take_precedence_over_those_of_the_prompts(tmp_path: Path) -> None:
    folder = write_prompt_sources(tmp_path / "bench", [{"bytes": encode_png(draw_noise(1)), "path": "a.png"}] * 4)
    write_rows(
        folder / "images/flint/00000.parquet", [{**row, "before": row["image"]} for row in read_image_rows("flint", 4)]
    )
    scores = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1]", SOURCE_OPTION))["scores"]
    by_generator = scores.groupby("generator")["score"]
    assert by_generator.max()["flint"] == 0 and by_generator.min()["atlas"] > 0


def test_masks_in_the_prompts_file_can_be_combined_with_sources_in_the_image_tables(tmp_path: Path) -> None:
    folder = write_edits(tmp_path / "bench", [encode_png(draw_noise(1, 64, 64))] * 4)
    lower = Image.new("L", (64, 64))
    lower.paste(255, (0, 32, 64, 64))
    write_rows(folder / "prompts.parquet", [{**row, "where": encode_png(lower)} for row in read_prompt_rows(4)[::-1]])
    scores = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1]", SOURCE_OPTION, MASK_OPTION))[
        "scores"
    ]
    with Image.open(io.BytesIO(read_image_rows("atlas", 1)[0]["image"])) as first:
        both = [np.asarray(one.convert("RGB").resize((64, 64)), float) for one in (first, draw_noise(1, 64, 64))]
    own = scores.set_index("prompt_id")["score"][read_image_rows("atlas", 1)[0]["prompt_id"]]
    assert own == pytest.approx(np.abs(both[0] - both[1])[:32].mean() / 255)


def test_sources_in_the_prompts_file_can_be_paths_relative_to_its_folder(tmp_path: Path) -> None:
    folder = write_prompt_sources(tmp_path / "bench", [None] * 4)
    (folder / "before").mkdir()
    for number, row in enumerate(read_image_rows("atlas", 4)):
        (folder / f"before/{number}.png").write_bytes(row["image"])
    rows = pd.DataFrame(read_prompt_rows(4))[["prompt_id", "text"]].assign(source=[f"before/{n}.png" for n in range(4)])
    rows.loc[3, "source"] = "../outside.png"
    rows[::-1].to_csv(folder / "prompts.csv", index=False)
    words = (f"benchmark.prompts={folder}/prompts.csv", "benchmark.columns.source_uri=source")
    tables = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1]", *words))
    scores = tables["scores"].pivot(index="prompt_id", columns="generator", values="score")
    assert scores["atlas"].dropna().tolist() == [0, 0, 0] and (scores["flint"].dropna() > 0).all()
    assert set(tables["errors"]["kind"]) == {"uri_refused"}
    plans = [plan_bench(folder, tmp_path / "store", "metric=[source_l1]", *words).plan]
    (folder / "before/0.png").write_bytes(encode_png(draw_noise(2, 50)))
    plans += [plan_bench(folder, tmp_path / "store", "metric=[source_l1]", *words).plan]
    assert not {cell.path for cell in plans[0].cells} & {cell.path for cell in plans[1].cells}


def test_a_changed_source_of_a_prompt_only_changes_metrics_that_read_sources(tmp_path: Path) -> None:
    folder, store = write_prompt_sources(tmp_path / "bench", [encode_png(draw_noise(1))] * 4), tmp_path / "store"
    run_bench(folder, store, "metric=[saturation]")
    tables = []
    for sources in ([encode_png(draw_noise(1))] * 4, [encode_png(draw_noise(1))] * 3 + [encode_png(draw_noise(2))]):
        write_prompts(folder, sources)
        planned = plan_bench(folder, store, "metric=[saturation,source_l1]", SOURCE_OPTION)
        assert {cell.recipe.metric for cell in planned.plan.missing} == {"source_l1"}
        tables.append(read_run_tables(run_plan(planned))["scores"].query("metric == 'source_l1'"))
    before, after = tables
    changed = before["score"].to_numpy() != after["score"].to_numpy()
    assert changed.sum() == 2 and set(after[changed]["prompt_id"]) == {read_prompt_rows(4)[3]["prompt_id"]}


def test_a_prompt_with_a_missing_or_damaged_source_only_fails_metrics_that_read_it(tmp_path: Path) -> None:
    folder = write_prompt_sources(
        tmp_path / "bench", [b"nonsense", None, encode_png(draw_noise(1)), encode_png(draw_noise(1))]
    )
    tables = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[source_l1,saturation]", SOURCE_OPTION))
    assert tables["scores"].groupby("metric")["score"].count().to_dict() == {"saturation": 8, "source_l1": 4}
    assert sorted(tables["errors"]["kind"]) == ["corrupt_image"] * 2 + ["missing_image"] * 2


def test_a_text_column_configured_as_images_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_prompt_sources(tmp_path / "bench", [None] * 4)
    pd.DataFrame(read_prompt_rows(4)).assign(before="a.png", skills="").to_csv(folder / "prompts.csv", index=False)
    with pytest.raises(ConfigError, match=r"prompts\.csv: 'before' contains text.*source_uri"):
        plan_bench(folder, tmp_path / "store", METRICS_OPTION, SOURCE_OPTION, f"benchmark.prompts={folder}/prompts.csv")
