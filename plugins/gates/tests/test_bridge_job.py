"""A bridge between two versions of a metric has a map, a verdict in words, and files in the store."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from plumbline.pipelines.nightly.regressions import find_baseline
from plumbline.pipelines.report.trends import make_trends
from plumbline.pipelines.store.runs import read_manifest
from tests.bench_of import SMALL_OPTIONS, UNJUDGED_OPTIONS, write_benchmark
from tests.commands import run_for_output, run_refused
from tests.operators.report.made import MadeRun, Score, draw_noisy_score, make_plain_prompts, make_run
from tests.pipelines.report.test_joined_versions import DAYS, make_both_nights

OLD_RUN, NEW_RUN = "2026-01-01", "2026-01-02"


def make_runs(folder: Path, new: Score) -> MadeRun:
    options: dict[str, Any] = {"prompts": make_plain_prompts(60), "metrics": ("gecko",), "question_metrics": ()}
    make_run(folder, run_id=OLD_RUN, **options)
    return make_run(folder, run_id=NEW_RUN, score=new, **options)


def list_arguments(folder: Path, *more: str) -> list[str]:
    return [
        f"store={folder}/store",
        "bridge.old=gecko",
        f"bridge.old_run={OLD_RUN}",
        f"bridge.new_run={NEW_RUN}",
        *more,
    ]


def read_bridge(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    (bridge,) = (folder / "store/bridges").iterdir()
    return json.loads((bridge / "bridge.json").read_text()), pd.read_parquet(bridge / "groups.parquet")


def score_with_noise(generator: str, metric: str, prompt: int) -> float:
    return float(np.random.default_rng([7, prompt, *generator.encode()]).uniform())


def score_with_shift(generator: str, metric: str, prompt: int) -> float:
    """Return half the old score plus a constant and some noise; one generator gets a bonus on one skill (counting)."""
    favoured = 0.2 if (generator, prompt % 2) == ("cobalt", 0) else 0
    return (
        0.3
        + draw_noisy_score(generator, metric, prompt) / 2
        + 0.02 * score_with_noise(generator, metric, prompt)
        + favoured
    )


def test_a_line_joins_shifted_scores_and_the_generator_off_the_line_is_named(tmp_path: Path) -> None:
    make_runs(tmp_path, score_with_shift)
    said = " ".join(run_for_output("bridge", *list_arguments(tmp_path)).split())
    bridge, groups = read_bridge(tmp_path)
    assert "180 images of 60 prompts and 3 generators were scored by both" in said
    assert "A map joins the old gecko and the new gecko: new = " in said and bridge["verdict"] == "joined"
    assert [bridge[side]["run_id"] for side in ("old", "new")] == [OLD_RUN, NEW_RUN]
    cobalt = groups[(groups.generator == "cobalt") & (groups.skill == "counting")].iloc[0]
    assert cobalt.clear and cobalt.miss > 0.05 and cobalt.prompts == 30
    assert cobalt.new == pytest.approx(cobalt.mapped + cobalt.miss) and "cobalt" in said.partition("not explain ")[2]
    assert bridge["margins"].keys() == {"overall", "counting", "colour"}


def test_a_bridge_exists_between_scores_on_a_curve_but_not_between_noise(tmp_path: Path) -> None:
    """Scores on a curve rank images identically, so the bridge explains nearly all variance. Noise has no bridge."""
    make_runs(tmp_path / "curve", lambda *at: draw_noisy_score(*at) ** 4)
    assert "A map joins the old gecko and the new gecko" in run_for_output(
        "bridge", *list_arguments(tmp_path / "curve")
    )
    curve, groups = read_bridge(tmp_path / "curve")
    assert curve["kind"] == "monotone" and curve["images_spearman"] == pytest.approx(1)
    assert curve["explained"] > 0.98 and curve["curve"][1] == sorted(curve["curve"][1])
    assert curve["generators_kendall"] == 1 and not curve["turned"] and len(groups) == 9
    assert curve["clear_misses"] == 0, "rounding the map's curve causes no clear miss"
    make_runs(tmp_path / "noise", score_with_noise)
    said = run_for_output("bridge", *list_arguments(tmp_path / "noise"))
    assert (
        "the old gecko and the new gecko measure different things: the best map explains" in said
        and "goes on" not in said
    )
    assert "warning trends and reports do not use this bridge" in said
    assert read_bridge(tmp_path / "noise")[0]["verdict"] == "different"


def test_identical_scores_share_a_scale_even_on_a_sample_of_prompts(tmp_path: Path) -> None:
    make_runs(tmp_path, draw_noisy_score)
    assert (
        "Scores of the old gecko and the new gecko are on the same scale: the mean of one more generator is off by "
        "at most ±0.000" in run_for_output("bridge", *list_arguments(tmp_path, "bridge.prompts=40"))
    )
    bridge, _ = read_bridge(tmp_path)
    assert (bridge["prompts"], bridge["images"], bridge["verdict"]) == (40, 120, "one scale")


def test_impossible_bridges_are_refused_with_the_reason(tmp_path: Path) -> None:
    make_runs(tmp_path, lambda *at: 0.5)
    for words, said in (
        ((), "gecko: expected different scores, found 0.5 for all 180 images; choose other images or another metric"),
        (("bridge.prompts=5",), "expected images for at least 20 prompts that both versions scored, found 15 images"),
        (("bridge.new=vqascore",), "bridge.new_run=2026-01-02: the run has no scores by the metric 'vqascore'"),
        ((f"bridge.new_run={OLD_RUN}",), "bridge.new: expected a version other than bridge.old=gecko"),
        (("bridge.new_run=lost",), "bridge.new_run=lost: no such run in"),
        (("bridge.old_run=null",), "bridge.old: the sweep has no metric"),
    ):
        wanted = [*list_arguments(tmp_path), *words, *(("metric=[clipscore]",) if "null" in str(words) else ())]
        assert said in run_refused("bridge", *wanted)


def test_nearly_constant_scores_are_not_bridged(tmp_path: Path) -> None:
    make_runs(
        tmp_path, lambda generator, metric, prompt: draw_noisy_score(generator, metric, prompt) if prompt < 5 else 0.5
    )
    assert "score differs from the most common score, found 5 of 60" in run_refused("bridge", *list_arguments(tmp_path))
    make_runs(
        tmp_path, lambda generator, metric, prompt: draw_noisy_score(generator, metric, prompt) if prompt < 40 else 0.5
    )
    assert "Images: Spearman 0." in " ".join(run_for_output("bridge", *list_arguments(tmp_path)).split())


def test_a_held_out_set_is_scored_by_both_versions_without_writing_a_run(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ("atlas", "flint"), count=24)
    words = [
        *UNJUDGED_OPTIONS, "metric=[edge_density]", "+metrics.busy={kind: image_statistic, statistic: entropy}",
        f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images", "benchmark.name=small",
        f"store={tmp_path}/store", *SMALL_OPTIONS, "bridge.old=edge_density", "bridge.new=busy", "bridge.prompts=20",
    ]  # fmt: skip
    said = run_for_output("bridge", *words)
    bridge, _ = read_bridge(tmp_path)
    assert "20 of 24 prompts x 2 generators" in said and "40 images of 20 prompts" in said
    assert bridge["old"]["recipe"].items() >= {("statistic", "edge_density"), ("stages.scores", "1")}
    assert bridge["old"]["recipe"].keys() == bridge["new"]["recipe"].keys() and bridge["old"]["run_id"] is None
    assert not (tmp_path / "store/runs").exists()
    cells = {*(tmp_path / "store").rglob("*.parquet")}
    run_for_output("bridge", *words)
    assert {path.parts[-3] for path in {*(tmp_path / "store").rglob("*.parquet")} - cells} == {"bridges"}


def test_a_bridge_joins_the_trends_of_both_versions(tmp_path: Path) -> None:
    run = make_both_nights(tmp_path)
    words = (f"store={tmp_path}/store", "bridge.old=gecko", f"bridge.old_run={DAYS[0]}", f"bridge.new_run={DAYS[1]}")
    assert "A map joins the old gecko and the new gecko" in run_for_output("bridge", *words)
    (said,) = make_trends(run.store).page.breaks.rows
    assert f"{DAYS[1]}, and its earlier scores are compared by bridge " in str(said)
    assert "off by at most ±0.0" in str(said)
    assert find_baseline(run.store, DAYS[1], read_manifest(run.store, DAYS[1]), "previous").run_id == DAYS[0]


def test_trends_stay_separate_if_the_versions_measure_different_things(tmp_path: Path) -> None:
    run = make_both_nights(tmp_path, lambda *at: draw_noisy_score("x", "independent noise", at[2] + 1000 * len(at[0])))
    words = (f"store={tmp_path}/store", "bridge.old=gecko", f"bridge.old_run={DAYS[0]}", f"bridge.new_run={DAYS[1]}")
    run_for_output("bridge", *words)
    (said,) = make_trends(run.store).page.breaks.rows
    assert "so its scores are not compared, and bridge" in str(said)
