"""What a page of trends shows: means over the runs of a benchmark, and over the checkpoints of a training."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.sentences import FirstRows, Sentence, names, number, plural, shown
from plumbline.operators.images.generation_settings import COMPARE, Choice, all_settings, differ_from_run
from plumbline.operators.metrics.metric import direction
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.charts import Chart, ChartLine, Point, trend_chart
from plumbline.operators.report.marked_words import cut
from plumbline.operators.results.bridge import Bridge, find_bridge, in_comparisons
from plumbline.operators.results.metric_recipes import Recipe, altered_places, recipe_of
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.score_maps import Line

COLOURS = 8
"""Lines of a chart; style sheets have as many colours, --s0 to --s7."""
MOST_SKILLS = 8
MOST_BREAKS = 20
MOST_LISTED = 60
MOST_CHARACTERS = 60
KEYS = ("metric", "skill", "generator")


class TrendRun(NamedTuple):
    """A run as far as trends read it."""

    run_id: str
    manifest: Mapping[str, Any]
    summary: pa.Table

    @property
    def time(self) -> str:
        """When it began, in ISO form and UTC; raises ValueError where its manifest does not say."""
        return f"{datetime.fromisoformat(self.manifest['began']):%Y-%m-%dT%H:%M:%S}"


class Newest(NamedTuple):
    """A generator's newest mean by a metric, and how far it is from the run before that can be compared with it."""

    mean: float
    low: float
    high: float
    coverage: float
    change: float | None


class Trend(NamedTuple):
    """A metric at a skill: its charts, and the newest means by generator."""

    metric: str
    lower_is_better: bool
    over_runs: Chart | None
    over_steps: Chart | None
    newest: Mapping[str, Newest]


class SkillPanel(NamedTuple):
    """All metrics at a skill, or overall."""

    skill: str
    trends: list[Trend]


class Series(NamedTuple):
    """A line's name beside its colour."""

    name: str
    colour: str


class Listed(NamedTuple):
    """A generator as the table has it."""

    name: str
    until: str
    """The day of its last run; empty where that is the newest."""


class Trends(NamedTuple):
    """The whole page."""

    benchmark: str
    facts: list[str]
    warnings: list[str]
    generators: FirstRows[Series]
    families: FirstRows[Series]
    listed: FirstRows[Listed]
    breaks: FirstRows[Sentence]
    panels: list[SkillPanel]
    skills_left_out: int

    @property
    def skills(self) -> list[str]:
        return [panel.skill for panel in self.panels]


class Checkpoints(NamedTuple):
    """How the names of generators tell which are checkpoints of one training."""

    pattern: re.Pattern[str]
    """With the groups `family` and `step`; the whole name has to match."""

    def family(self, generator: str) -> tuple[str, int] | None:
        """The training and the step of a checkpoint; None for any other generator."""
        match = self.pattern.fullmatch(generator)
        if match is None or not match["family"] or not (match["step"] or "").isdecimal():
            return None
        return match["family"], int(match["step"])


def to_frame(runs: Sequence[TrendRun], choice: Choice = COMPARE) -> pd.DataFrame:
    """Every mean of every run, oldest first: run_id, began, recipe (a number for each metric), settings (a number for
    each generator), the summary's columns.

    The numbers are raised where the metric's settings or models are not those of the run before that has it, and where
    the generator's images were generated with other settings.
    """
    changed = [(run.run_id, generator) for run, generator, _ in _changed_settings(runs, choice)]
    changes: Counter[str] = Counter()
    tables = []
    recipes: dict[str, Recipe] = {}
    numbers: dict[str, int] = {}
    for run in runs:
        for metric in run.manifest.get("metrics", ()):
            now = recipe_of(run.manifest, metric)
            numbers[metric] = numbers.get(metric, 0) + bool(altered_places(recipes.get(metric, now), now))
            recipes[metric] = now
        of_run = [numbers.get(metric, 0) for metric in run.summary.column("metric").to_pylist()]
        changes.update(generator for run_id, generator in changed if run_id == run.run_id)
        values = {
            "run_id": [run.run_id] * len(of_run),
            "began": [run.time] * len(of_run),
            "recipe": of_run,
            "settings": [changes[generator] for generator in run.summary.column("generator").to_pylist()],
        }
        columns = dict(zip(run.summary.column_names, run.summary.columns, strict=True))
        tables.append(pa.table({**values, **columns}))
    return pa.concat_tables(tables).to_pandas()


def _changed_settings(runs: Sequence[TrendRun], choice: Choice) -> Iterator[tuple[TrendRun, str, str]]:
    """The runs in which a generator's settings are others than in the run before that knows any, with what differs."""
    earlier: dict[str, TrendRun] = {}
    for run in runs:
        for generator in all_settings(run.manifest, choice):
            before = earlier.get(generator)
            if before is not None and (said := differ_from_run(before.manifest, run.manifest, generator)):
                yield run, generator, said
            earlier[generator] = run


class Break(NamedTuple):
    """Where a metric is no more what it was."""

    metric: str
    time: str
    """Of the first run with the new one."""
    sentence: Sentence
    bridge: Bridge | None
    """What joins the two, where anything does."""


def find_breaks(runs: Sequence[TrendRun], bridges: Sequence[Bridge] = ()) -> Iterator[Break]:
    """Where metrics are no more what they were, what differs, and what a bridge says of the two."""
    recipes: dict[str, Recipe] = {}
    for run in runs:
        for metric in run.manifest.get("metrics", ()):
            now = recipe_of(run.manifest, metric)
            before = recipes.get(metric, now)
            recipes[metric] = now
            if places := altered_places(before, now):
                bridge = find_bridge(bridges, before, now)
                joined = "" if bridge is None else f", {in_comparisons(bridge)}"
                lead = f"{metric} is another metric since run {run.run_id}{joined}:"
                what = names([f"{place} {_cut(before, place)} → {_cut(now, place)}" for place in places], 1)
                joins = bridge if bridge is not None and bridge.joins else None
                yield Break(metric, run.time, Sentence(lead, f"{what}."), joins)


def _cut(settings: Recipe, place: str) -> str:
    return cut(settings.get(place, "–"), MOST_CHARACTERS)


def build_trends(
    runs: Sequence[TrendRun],
    frame: pd.DataFrame,
    checkpoints: Checkpoints,
    warnings: Sequence[str] = (),
    choice: Choice = COMPARE,
    bridges: Sequence[Bridge] = (),
) -> Trends:
    """The page of some runs of a benchmark, oldest first.

    `frame` are the means of all runs (`to_frame`), those that are not drawn too. Where a bridge joins a metric with
    what it was, the means before it are drawn on its new scale.
    """
    earlier = frame["run_id"].nunique() - len(runs)
    frame = frame[frame["run_id"].isin([run.run_id for run in runs])]
    found = {name: checkpoints.family(name) for name in frame["generator"].unique()}
    steps = {name: place for name, place in found.items() if place is not None}
    families = _families(steps)
    steps = {name: place for name, place in steps.items() if place[0] in families}
    falling = falling_metrics(runs[-1].manifest)
    listed = _by_standing(frame, falling)
    alone = [name for name in listed if name not in steps]
    breaks = list(find_breaks(runs, bridges))
    altered = [
        Sentence(f"{generator} was generated with other settings in run {run.run_id}:", f"{said}.")
        for run, generator, said in _changed_settings(runs, choice)
    ]
    frame = _joined(frame, breaks)
    skills = [OVERALL, *_by_rows(frame)]
    metrics = list(dict.fromkeys([*runs[-1].manifest.get("metrics", ()), *frame["metric"]]))
    drawing = _Drawing(frame, metrics, alone[:COLOURS], families[:COLOURS], falling, steps, breaks)
    return Trends(
        benchmark=str(runs[-1].manifest.get("benchmark", "")),
        facts=[
            plural(len(runs), "run"),
            f"{runs[0].time[:10]} to {runs[-1].time[:10]}",
            *([f"{plural(earlier, 'earlier run')} not drawn"] if earlier else []),
            plural(len(found), "generator"),
        ],
        warnings=list(warnings),
        generators=_coloured(alone),
        families=_coloured(families),
        listed=shown(_until(frame, listed, runs[-1]), MOST_LISTED),
        breaks=shown([*altered[::-1], *(one.sentence for one in reversed(breaks))], MOST_BREAKS),
        panels=[drawing.panel(skill) for skill in skills[: MOST_SKILLS + 1]],
        skills_left_out=max(len(skills) - MOST_SKILLS - 1, 0),
    )


def _joined(frame: pd.DataFrame, breaks: Sequence[Break]) -> pd.DataFrame:
    """The means with the `line` that each is drawn on; before a bridge they are mapped, and less sure by its margin."""
    frame = frame.assign(line=frame["recipe"])
    for metric in {one.metric for one in breaks}:
        of_metric = frame["metric"] == metric
        first = frame.loc[of_metric, "recipe"].min()
        for recipe, one in enumerate((one for one in breaks if one.metric == metric), start=first + 1):
            if one.bridge is not None:
                margins = frame["skill"].map(one.bridge.margins)
                before = of_metric & (frame["line"] == recipe - 1) & margins.notna()
                frame.loc[before, ["mean", "low", "high"]] = _mapped(frame[before], margins[before], one.bridge.line)
                frame.loc[before, "line"] = recipe
    return frame


def _mapped(rows: pd.DataFrame, margins: pd.Series, line: Line) -> NDArray[np.float64]:
    """Means on the new scale, with the ends of their intervals (n, 3)."""
    means, low, high = (rows[name].to_numpy(float) for name in ("mean", "low", "high"))
    mapped = line(means)
    ends = np.sort([line(np.where(np.isnan(end), means, end)) for end in (low, high)], axis=0)
    below, above = np.hypot(ends - mapped, margins.to_numpy(float))
    return np.stack([mapped, mapped - below, mapped + above], axis=1)


def _families(steps: Mapping[str, tuple[str, int]]) -> list[str]:
    """The trainings with more than one checkpoint."""
    of_family: dict[str, set[int]] = {}
    for family, step in steps.values():
        of_family.setdefault(family, set()).add(step)
    return sorted(family for family, known in of_family.items() if len(known) > 1)


def _until(frame: pd.DataFrame, listed: Sequence[str], newest: TrendRun) -> list[Listed]:
    """The generators, each with the day of its last run where that is not the newest."""
    last = frame.groupby("generator")["began"].max()
    return [Listed(name, "" if last[name] == newest.time else str(last[name])[:10]) for name in listed]


def _by_standing(frame: pd.DataFrame, falling: Container[str]) -> list[str]:
    """Generators with the newest first, of one run those of the best ranks over its metrics."""
    overall = frame[frame["skill"] == OVERALL]
    towards = overall["metric"].map(lambda metric: direction(metric, falling))
    overall = overall.assign(mean=overall["mean"] * towards)
    last = overall.groupby("generator")["began"].max()
    ranks = overall.groupby(["run_id", "metric"])["mean"].rank(ascending=False).groupby(overall["generator"]).mean()
    order = pd.DataFrame({"last": last, "rank": ranks}).sort_values(["last", "rank"], ascending=[False, True])
    return [str(name) for name in order.index]


def _by_rows(frame: pd.DataFrame) -> list[str]:
    """The skills, those of the most images first."""
    rows = frame[frame["skill"] != OVERALL].groupby("skill")["n"].max()
    return [str(skill) for skill in rows.sort_values(ascending=False, kind="stable").index]


def _coloured(listed: Sequence[str]) -> FirstRows[Series]:
    return shown([Series(name, _colour(place)) for place, name in enumerate(listed)], COLOURS)


def _colour(place: int) -> str:
    return f"var(--s{place % COLOURS})"


class _Drawing:
    """Draws the charts of one page."""

    def __init__(
        self,
        frame: pd.DataFrame,
        metrics: Sequence[str],
        generators: Sequence[str],
        families: Sequence[str],
        falling: Container[str],
        steps: Mapping[str, tuple[str, int]],
        breaks: Sequence[Break],
    ) -> None:
        scored = frame.dropna(subset=["mean"])
        self.means = dict(iter(scored.groupby(["metric", "skill"], sort=False)))
        self.metrics, self.falling = metrics, falling
        self.generators, self.families, self.steps, self.breaks = generators, families, steps, breaks

    def panel(self, skill: str) -> SkillPanel:
        """All metrics that have means at the skill."""
        there = [metric for metric in self.metrics if (metric, skill) in self.means]
        return SkillPanel(skill, [self._trend(metric, skill, self.means[metric, skill]) for metric in there])

    def _trend(self, metric: str, skill: str, means: pd.DataFrame) -> Trend:
        newest = {str(name): _newest(rows) for name, rows in means.groupby("generator", sort=False)}
        over_runs, over_steps = self._over_runs(metric, skill, means), self._over_steps(metric, skill, means)
        return Trend(metric, metric in self.falling, over_runs, over_steps, newest)

    def _over_runs(self, metric: str, skill: str, means: pd.DataFrame) -> Chart | None:
        own = means[means["generator"].isin(self.generators)]
        if own.empty:
            return None
        lines = [
            ChartLine(_points(rows["began"], rows), _colour(self.generators.index(str(key[0]))))
            for key, rows in own.groupby(["generator", "line", "settings"], sort=False)
        ]
        times = [one.time for one in self.breaks if one.metric == metric]
        said = [f"{name} {number(rows['mean'].iloc[-1])}" for name, rows in own.groupby("generator", sort=False)]
        label = f"Mean {metric} over runs, {skill}, with 95% intervals; newest: {'; '.join(said)}"
        return trend_chart(lines, times, label)

    def _over_steps(self, metric: str, skill: str, means: pd.DataFrame) -> Chart | None:
        """Each checkpoint as the newest run has it that scored it by the metric as it is now, or by one that is joined
        with it.
        """
        now = means[(means["line"] == means["line"].max()) & means["generator"].isin(list(self.steps))]
        last = now.groupby("generator", sort=False).tail(1)
        if last.empty:
            return None
        places = pd.DataFrame([self.steps[str(name)] for name in last["generator"]], columns=["family", "step"])
        placed = last.assign(family=places["family"].to_numpy(), step=places["step"].to_numpy()).sort_values("step")
        groups = [(str(family), rows) for family, rows in placed.groupby("family") if family in self.families]
        lines = [
            ChartLine(_points(rows["step"], rows), _colour(self.families.index(family))) for family, rows in groups
        ]
        said = [f"{family} {number(rows['mean'].iloc[-1])} at {rows['step'].iloc[-1]}" for family, rows in groups]
        label = f"Mean {metric} over the steps of a training, {skill}, with 95% intervals; last: {'; '.join(said)}"
        return trend_chart(lines, [], label)


def _points(places: Iterable[Any], rows: pd.DataFrame) -> list[Point]:
    """The rows' means; one without an interval, of a single prompt, is its own ends."""
    low, high = rows["low"].fillna(rows["mean"]), rows["high"].fillna(rows["mean"])
    return [
        Point(place if isinstance(place, str) else int(place), *ends)
        for place, *ends in zip(places, rows["mean"].tolist(), low.tolist(), high.tolist(), strict=True)
    ]


def _newest(rows: pd.DataFrame) -> Newest:
    columns = ["mean", "low", "high", "coverage", "recipe", "settings"]
    *before, last = rows[columns].tail(2).to_numpy(float).tolist()
    mean, low, high, coverage, *of_last = last
    change = mean - before[0][0] if before and before[0][-len(of_last) :] == of_last else None
    return Newest(mean, low, high, coverage, change)
