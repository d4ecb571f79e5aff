"""When a judge changes, trends, reports and nightly runs mention it, and a bridge makes both versions comparable."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.results.bridge import Bridge, Line, MetricVersion
from plumbline.operators.results.metric_recipes import read_recipe
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.pipelines.nightly.regressions import find_baseline
from plumbline.pipelines.report.comparable_runs import BRIDGES_FOLDER
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.report.trends import make_trends
from plumbline.pipelines.store.runs import read_manifest
from tests.operators.report.made import MadeRun, Score, draw_noisy_score, make_plain_prompts, make_run

DAYS = ("2026-01-01", "2026-01-02")


def halve_score(generator: str, metric: str, prompt: int) -> float:
    """Return the score of an image under the new wording: half the old score, plus 0.1, plus noise."""
    return (
        0.1
        + draw_noisy_score(generator, metric, prompt) / 2
        + 0.04 * (draw_noisy_score(generator, "other", prompt) - 0.5)
    )


def make_night(folder: Path, day: str, score: Score, wording: str) -> MadeRun:
    run = make_run(
        folder, run_id=day, score=score, prompts=make_plain_prompts(40), metrics=("gecko",), question_metrics=(),
        began=f"{day}T02:00:00+00:00",
    )  # fmt: skip
    path = f"runs/{day}/manifest.json"
    manifest = run.store.read_json(path) or {}
    manifest["config"]["metrics"]["gecko"]["template"] = wording
    run.store.write_json(path, manifest)
    return run


def make_both_nights(folder: Path, second: Score = halve_score) -> MadeRun:
    make_night(folder, DAYS[0], draw_noisy_score, "so?")
    return make_night(folder, DAYS[1], second, "no?")


def write_bridge(run: MadeRun, **other: Any) -> None:
    """Write to the run's store a bridge between the metric versions of both nights, as `plumbline bridge` does.

    A bridge says whether and how the old version's scores can be converted to the new version's. The arguments `other`
    override fields of the bridge.
    """
    old, new = (
        MetricVersion(metric="gecko", run_id=day, recipe=read_recipe(read_manifest(run.store, day), "gecko"))
        for day in DAYS
    )
    found: dict[str, Any] = {
        "bridge_id": "20260103-000000-000000", "benchmark": "made", "old": old, "new": new,
        "generators": ["atlas", "borealis", "cobalt"], "prompts": 40, "images": 120, "verdict": "joined",
        "kind": "linear", "misses": {"unchanged": 0.4, "linear": 0.01}, "explained": 0.98, "curve": None,
        "line_kind": "linear", "line": Line(0.08, 0.54), "means_explained": None, "wanted": 0.5,
        "margins": {"overall": 0.02, "counting": 0.03, "colour": 0.03}, "images_spearman": 0.99,
        "images_interval": Interval(0.98, 1.0), "generators_kendall": 1.0, "clear": {"old": 3, "new": 3, "both": 3},
        "turned": [], "clear_misses": 0,
    }  # fmt: skip
    bridge = Bridge(**(found | other))
    run.store.create_json(f"{BRIDGES_FOLDER}/{bridge.bridge_id}/bridge.json", asdict(bridge))


def test_without_a_bridge_the_line_breaks_and_no_night_is_a_regression(tmp_path: Path) -> None:
    run = make_both_nights(tmp_path)
    (said,) = make_trends(run.store).page.breaks.rows
    assert str(said) == f"gecko is a different metric since run {DAYS[1]}: template so? → no?."
    baseline = find_baseline(run.store, DAYS[1], read_manifest(run.store, DAYS[1]), "previous")
    assert baseline.run_id is None and "the settings or models of gecko differ" in baseline.reason


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    folder = tmp_path_factory.mktemp("joined")
    run = make_both_nights(folder)
    write_bridge(run)
    return run


def test_a_bridge_joins_the_line_of_trends_with_a_mark_and_wider_intervals(joined: MadeRun) -> None:
    made = make_trends(joined.store)
    (said,) = made.page.breaks.rows
    assert f"{DAYS[1]}, and its earlier scores are compared by bridge " in str(said)
    assert "off by at most ±0.0" in str(said)
    chart = made.page.panels["overall"][0].over_runs
    assert chart is not None and chart.svg.count("stroke-dasharray") == 1
    raw = made.means[(made.means.generator == "atlas") & (made.means.skill == "overall")]
    assert raw.recipe.tolist() == [0, 1] and raw["mean"].iloc[0] > 0.8, "the table keeps what was measured"


def test_a_night_is_compared_through_the_bridge_and_the_bridges_noise_is_not_a_regression(joined: MadeRun) -> None:
    manifest = read_manifest(joined.store, DAYS[1])
    assert find_baseline(joined.store, DAYS[1], manifest, "previous").run_id == DAYS[0]
    changes = write_report(joined.store, DAYS[1], compare="previous").page.changes
    assert changes is not None and not changes.clear
    (through,) = [str(said) for said in changes.sentences if "its earlier scores" in str(said)]
    assert "and its earlier scores are compared by bridge" in through
    atlas = next(change for change in changes.overall.rows if change.generator == "atlas")
    assert atlas.before == pytest.approx(atlas.after, abs=0.03) and 0 < atlas.margin < 0.1


def test_a_drop_beyond_the_margin_is_a_regression_across_the_bridge(joined: MadeRun, tmp_path: Path) -> None:
    """The first night uses the old wording; on the third night, cobalt is much worse under the new wording."""

    def score_cobalt_worse(generator: str, metric: str, prompt: int) -> float:
        return halve_score(generator, metric, prompt) - (0.2 if generator == "cobalt" else 0)

    shutil.copytree(joined.folder.parents[1], tmp_path / "store")
    run = make_night(tmp_path, "2026-01-03", score_cobalt_worse, "no?")
    changes = write_report(run.store, "2026-01-03", compare=DAYS[0]).page.changes
    assert changes is not None
    assert {(change.generator, change.verdict) for change in changes.clear} == {("cobalt", "worse")}


def test_a_bridge_between_other_versions_joins_nothing_and_is_reported(tmp_path: Path) -> None:
    run = make_both_nights(tmp_path, lambda *at: draw_noisy_score("x", "noise of its own", at[2] + 1000 * len(at[0])))
    write_bridge(run, verdict="different", explained=0.1, margins={})
    (said,) = make_trends(run.store).page.breaks.rows
    assert "so its scores are not compared, and bridge" in str(said)
    assert find_baseline(run.store, DAYS[1], read_manifest(run.store, DAYS[1]), "previous").run_id is None
