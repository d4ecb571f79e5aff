"""Trend charts only connect comparable means, and recognise checkpoints by name."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report import trends as trends_room
from plumbline.operators.report.changes import compare_runs
from plumbline.operators.report.charts import Chart, ChartLine, draw_trend_chart
from plumbline.operators.report.trends import TrendRun, Trends, build_trends, parse_checkpoint, to_frame
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.report.comparable_runs import CHECKPOINT_PATTERN
from tests.operators.tallied import wrap_scores

COMPILED_CHECKPOINT_PATTERN = re.compile(CHECKPOINT_PATTERN)


def make_manifest(day: int = 1, **options: Any) -> dict[str, Any]:
    return {
        "run_id": f"2026-01-{day:02d}",
        "began": f"2026-01-{day:02d}T02:00:00+00:00",
        "benchmark": "made",
        "metrics": ["gecko"],
        "models": {"answers:vqa": {"family": "vlm", "parts": {"checkpoint": "0123"}}},
        "config": {
            "metrics": {"gecko": {"kind": "gecko", "model": "vqa", "template": "so?", "about": "x", **options}},
            "models": {"vqa": {"checkpoint": "org/vlm", "revision": "main"}, "llm": {"checkpoint": "a"}},
        },
    }


def make_trend_run(day: int, means: dict[str, float | None], **options: Any) -> TrendRun:
    made = [
        {"generator": name, "metric": "gecko", "skill": skill, "mean": mean, "n": 8, "coverage": 1.0}
        | ({} if mean is None else {"low": mean - 0.1, "high": mean + 0.1})
        for name, mean in means.items()
        for skill in ("overall", "counting")
    ]
    return TrendRun(f"2026-01-{day:02d}", make_manifest(day, **options), rows.table(made, schemas.SUMMARY))


def make_trends(*runs: TrendRun, drawn: int = 9) -> Trends:
    return build_trends(runs[-drawn:], to_frame(runs), COMPILED_CHECKPOINT_PATTERN)


class DrawnChart(NamedTuple):
    """The arguments that a chart was drawn with."""

    lines: Sequence[ChartLine]
    breaks: Sequence[str | int]
    label: str


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[DrawnChart]:
    """Return a list that receives the charts of a page in drawing order.

    For each panel, the chart over runs comes first, then the chart over steps.
    """
    drawn: list[DrawnChart] = []

    def draw(*given: Any) -> Chart:
        drawn.append(DrawnChart(*given))
        return draw_trend_chart(*given)

    monkeypatch.setattr(trends_room, "draw_trend_chart", draw)
    return drawn


def test_a_line_breaks_where_the_metric_changed_and_the_page_says_so(charts: list[DrawnChart]) -> None:
    means = [{"a": 0.5}, {"a": 0.6}, {"a": 0.2}, {"a": 0.3}]
    page = make_trends(
        *(make_trend_run(day, mean, template="so?" if day < 3 else "no?") for day, mean in enumerate(means, 1))
    )
    (said,) = page.breaks.rows
    assert str(said) == "gecko is a different metric since run 2026-01-03: template so? → no?."
    assert [[point.mean for point in line.points] for line in charts[0].lines] == [[0.5, 0.6], [0.2, 0.3]]
    assert charts[0].breaks == ["2026-01-03T02:00:00"]
    assert page.panels["overall"][0].newest["a"].change == pytest.approx(0.1)
    chart = page.panels["overall"][0].over_runs
    assert chart is not None and chart.svg.count("stroke-dasharray") == 1
    charts.clear()
    assert make_trends(*(make_trend_run(day, mean) for day, mean in enumerate(means, 1))).breaks.rows == []
    assert [[point.mean for point in line.points] for line in charts[0].lines] == [[0.5, 0.6, 0.2, 0.3]]
    assert [(point.low, point.high) for point in charts[0].lines[0].points][:1] == [(0.4, 0.6)]


def test_changes_are_only_reported_within_one_recipe() -> None:
    page = make_trends(make_trend_run(1, {"a": 0.5, "b": 0.5}), make_trend_run(2, {"a": 0.6}, template="no?"))
    newest = page.panels["overall"][0].newest
    assert newest["a"].change is None and newest["a"].mean == pytest.approx(0.6)
    assert page.listed.rows == [("a", ""), ("b", "2026-01-01")]


def test_generators_are_listed_by_the_direction_of_the_metric() -> None:
    usual = make_trend_run(1, {"a": 0.5, "b": 0.9, "c": 0.7})
    falling = usual._replace(manifest={**usual.manifest, "lower_is_better": ["gecko"]})
    assert make_trends(usual).generators.rows == ["b", "c", "a"]
    assert make_trends(falling).generators.rows == ["a", "c", "b"]
    assert [make_trends(one).panels["overall"][0].lower_is_better for one in (usual, falling)] == [False, True]


def test_runs_that_are_not_drawn_are_counted() -> None:
    page = make_trends(*(make_trend_run(day, {"a": 0.5}) for day in range(1, 6)), drawn=2)
    assert page.facts == ["2 runs", "2026-01-04 to 2026-01-05", "3 earlier runs not drawn", "1 generator"]


def test_a_page_may_have_a_generator_without_a_score() -> None:
    page = make_trends(make_trend_run(1, {"a": 0.5, "b": None}), make_trend_run(2, {"a": None, "b": None}))
    assert set(page.panels["overall"][0].newest) == {"a"} and [*page.panels] == ["overall", "counting"]


@pytest.mark.parametrize(
    "name, place",
    [
        ("sdxl-step-2000", ("sdxl", 2000)),
        ("flux_ckpt500", ("flux", 500)),
        ("my.run-checkpoint-00010", ("my.run", 10)),
        ("a-step-1-step-20", ("a-step-1", 20)),
        ("sdxl", None),
        ("sdxl-1.0", None),
        ("step-5", None),
    ],
)
def test_checkpoints_are_recognised_by_their_names(name: str, place: tuple[str, int] | None) -> None:
    assert parse_checkpoint(COMPILED_CHECKPOINT_PATTERN, name) == place


def test_checkpoints_of_a_training_run_are_drawn_in_order_with_the_newest_scores(charts: list[DrawnChart]) -> None:
    first = make_trend_run(1, {"x-step-10": 0.1, "x-step-9": 0.2, "alone-step-3": 0.7, "a": 0.5})
    page = make_trends(first, make_trend_run(2, {"x-step-10": 0.4, "x-step-100": 0.6, "a": 0.5}))
    assert page.families.rows == ["x"]
    assert page.generators.rows == ["a", "alone-step-3"]
    assert [(point.x, point.mean) for point in charts[1].lines[0].points] == [(9, 0.2), (10, 0.4), (100, 0.6)]
    assert charts[1].label.endswith("last: x 0.600 at 100") and charts[1].breaks == []
    charts.clear()
    make_trends(first, make_trend_run(2, {"x-step-100": 0.6, "x-step-10": 0.4, "a": 0.5}, template="no?"))
    assert [(point.x, point.mean) for point in charts[1].lines[0].points] == [(10, 0.4), (100, 0.6)]


ALTERATIONS = {
    "template": lambda content: content["config"]["metrics"]["gecko"].update(template="no?"),
    "about": lambda content: content["config"]["metrics"]["gecko"].update(about="y"),
    "files": lambda content: content["models"]["answers:vqa"]["parts"].update(checkpoint="4567"),
    "family": lambda content: content["models"]["answers:vqa"].update(family="blip"),
    "name of resolved files": lambda content: content["config"]["models"]["vqa"].update(checkpoint="/copied/vlm"),
    "another's model": lambda content: content["config"]["models"]["llm"].update(checkpoint="b"),
    "unresolved revision": lambda content: (
        content["models"].clear(),
        content["config"]["models"]["vqa"].update(revision="2"),
    ),
    "nothing": lambda content: None,
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_trends_and_reports_agree_on_when_a_metric_has_changed(name: str) -> None:
    before, after = make_manifest(1), make_manifest(2)
    if name == "unresolved revision":
        before["models"].clear()
        after["models"].clear()
    ALTERATIONS[name](after)
    nothing = wrap_scores(schemas.SCORES.empty_table())
    changes = compare_runs(nothing, nothing, Skills(()), (before, after))
    is_named = any("is not the same metric" in str(sentence) for sentence in changes.sentences)
    means = make_trend_run(1, {"a": 0.5}).summary
    page = make_trends(TrendRun("1", before, means), TrendRun("2", after, means))
    assert bool(page.breaks.rows) == is_named == (name in ("template", "files", "family", "unresolved revision"))
