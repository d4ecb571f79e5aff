"""Builds the trends page: means over the runs of a benchmark, and over the checkpoints of a training run."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base.sentences import (
    FirstRows,
    Sentence,
    format_names,
    format_number,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.images.generation_settings import (
    COMPARE,
    SettingsPolicy,
    describe_changed_settings,
    read_all_settings,
)
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.changes import list_altered_settings
from plumbline.operators.report.charts import Chart, ChartLine, Point, draw_trend_chart
from plumbline.operators.results.bridge import Bridge, describe_use, find_bridge
from plumbline.operators.results.metric_recipes import Recipe, list_relative_metrics, read_recipe
from plumbline.operators.results.summary import OVERALL

N_COLOURS = 8
"""Maximum number of lines in a chart: the number of colours that the style sheets define, --s0 to --s7."""
MAX_SKILLS = 8
MAX_LISTED_BREAKS = 20
MAX_LISTED_GENERATORS = 60
MAX_CHARACTERS = 60


class TrendRun(NamedTuple):
    """A run of a benchmark with its manifest and summary, from which trends are drawn."""

    run_id: str
    manifest: Mapping[str, Any]
    summary: pa.Table

    @property
    def time(self) -> str:
        """Start of the run in UTC and ISO format; raises ValueError if the manifest has no valid time."""
        return f"{datetime.fromisoformat(self.manifest['began']):%Y-%m-%dT%H:%M:%S}"


class NewestMean(NamedTuple):
    mean: float
    low: float
    high: float
    coverage: float
    change: float | None
    """Difference from the mean in the previous run; None if the two are not comparable."""


class Trend(NamedTuple):
    """A metric's charts for one skill, and the newest mean of each generator."""

    metric: str
    lower_is_better: bool
    over_runs: Chart | None
    over_steps: Chart | None
    newest: Mapping[str, NewestMean]


class Trends(NamedTuple):
    """Everything that the trends page of a benchmark shows."""

    benchmark: str
    facts: list[str]
    warnings: list[str]
    generators: FirstRows[str]
    """Generators that are not checkpoints. A generator's index is also the index of its colour."""
    families: FirstRows[str]
    """Training runs with several checkpoints. A training run's index is also the index of its colour."""
    listed: FirstRows[tuple[str, str]]
    """Every generator with the day of its last run, or an empty string if that is the newest run."""
    breaks: FirstRows[Sentence]
    panels: Mapping[str, Sequence[Trend]]
    """Trends of all metrics by skill, overall first."""
    skills_left_out: int


def parse_checkpoint(pattern: re.Pattern[str], generator: str) -> tuple[str, int] | None:
    """Return a checkpoint's training run and step; None for any other generator.

    The pattern must match the whole name and have the groups `family` and `step`.
    """
    match = pattern.fullmatch(generator)
    if match is None or not match["family"] or not (match["step"] or "").isdecimal():
        return None
    return match["family"], int(match["step"])


def to_frame(runs: Sequence[TrendRun], choice: SettingsPolicy = COMPARE) -> pd.DataFrame:
    """Return the means of all runs, one row each, oldest run first.

    The columns are run_id, began, recipe, settings and those of the summary. `recipe` counts how often the metric's
    settings or models have changed up to that run, and `settings` how often the generator's settings have changed. Two
    means are comparable if neither count differs between them.
    """
    changed = [(run.run_id, generator) for run, generator, _ in _find_changed_settings(runs, choice)]
    altered = [(run.run_id, metric) for run, metric, _, _ in _find_changed_recipes(runs)]
    settings, recipes = Counter[str](), Counter[str]()
    frames = []
    for run in runs:
        settings.update(generator for run_id, generator in changed if run_id == run.run_id)
        recipes.update(metric for run_id, metric in altered if run_id == run.run_id)
        frame = run.summary.to_pandas()
        frame.insert(0, "run_id", run.run_id)
        frame.insert(1, "began", run.time)
        frame.insert(2, "recipe", [recipes[metric] for metric in frame["metric"]])
        frame.insert(3, "settings", [settings[generator] for generator in frame["generator"]])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _find_changed_settings(runs: Sequence[TrendRun], choice: SettingsPolicy) -> Iterator[tuple[TrendRun, str, str]]:
    """Yield (run, generator, differences) if a generator's settings changed since the last run that recorded any."""
    earlier: dict[str, TrendRun] = {}
    for run in runs:
        for generator in read_all_settings(run.manifest, choice):
            before = earlier.get(generator)
            if before is not None and (found := describe_changed_settings(before.manifest, run.manifest, generator)):
                yield run, generator, found
            earlier[generator] = run


def _find_changed_recipes(runs: Sequence[TrendRun]) -> Iterator[tuple[TrendRun, str, Recipe, Recipe]]:
    """Yield (run, metric, old, new) if a metric's recipe differs from that in the last run that used the metric."""
    recipes: dict[str, Recipe] = {}
    for run in runs:
        for metric in run.manifest.get("metrics", ()):
            new = read_recipe(run.manifest, metric)
            old = recipes.get(metric, new)
            if old != new:
                yield run, metric, old, new
            recipes[metric] = new


class TrendBreak(NamedTuple):
    """A change in a metric's settings or models between two runs."""

    metric: str
    time: str
    """Start of the first run with the new settings."""
    sentence: Sentence
    bridge: Bridge | None
    """Bridge that makes both versions comparable, if there is one."""


def _find_breaks(runs: Sequence[TrendRun], bridges: Sequence[Bridge]) -> Iterator[TrendBreak]:
    for run, metric, old, new in _find_changed_recipes(runs):
        bridge = find_bridge(bridges, old, new)
        use = "" if bridge is None else f", {describe_use(bridge)}"
        lead = f"{metric} is a different metric since run {run.run_id}{use}:"
        values = format_names([" ".join(setting) for setting in list_altered_settings(old, new, MAX_CHARACTERS)], 1)
        joins = bridge if bridge is not None and bridge.joins else None
        yield TrendBreak(metric, run.time, Sentence(lead, f"{values}."), joins)


def _warn_about_win_rates(newest: TrendRun) -> Iterator[str]:
    for metric in sorted(list_relative_metrics(newest.manifest)):
        yield f"{metric} compares generators within a run, so a line also moves if another generator changes."


def build_trends(
    runs: Sequence[TrendRun],
    frame: pd.DataFrame,
    checkpoints: re.Pattern[str],
    warnings: Sequence[str] = (),
    choice: SettingsPolicy = COMPARE,
    bridges: Sequence[Bridge] = (),
) -> Trends:
    """Return the trends page for some runs of a benchmark, given oldest first.

    If a bridge joins two versions of a metric, earlier means are drawn on the new scale. `frame` (from `to_frame`)
    contains the means of all runs, including runs that are not drawn. `checkpoints` matches the names of checkpoints.
    """
    earlier = frame["run_id"].nunique() - len(runs)
    frame = frame[frame["run_id"].isin([run.run_id for run in runs])]
    found = {name: parse_checkpoint(checkpoints, name) for name in frame["generator"].unique()}
    steps = {name: parsed for name, parsed in found.items() if parsed is not None}
    n_steps = Counter(family for family, _ in set(steps.values()))
    families = sorted(family for family, count in n_steps.items() if count > 1)
    steps = {name: parsed for name, parsed in steps.items() if parsed[0] in families}
    lower_is_better = read_lower_is_better(runs[-1].manifest)
    order = _order_generators(frame, lower_is_better)
    last = frame.groupby("generator")["began"].max()
    generators = [name for name in order if name not in steps]
    breaks = list(_find_breaks(runs, bridges))
    altered = [
        Sentence(f"{generator} was generated with other settings in run {run.run_id}:", f"{differences}.")
        for run, generator, differences in _find_changed_settings(runs, choice)
    ]
    frame = _bridge_means(frame, breaks)
    sizes = frame[frame["skill"] != OVERALL].groupby("skill")["n"].max().sort_values(ascending=False, kind="stable")
    skills = [OVERALL, *map(str, sizes.index)]
    means_of = dict(iter(frame.dropna(subset=["mean"]).groupby(["metric", "skill"], sort=False)))
    panels: dict[str, list[Trend]] = {skill: [] for skill in skills[: MAX_SKILLS + 1]}
    for skill, panel in panels.items():
        for metric in dict.fromkeys([*runs[-1].manifest.get("metrics", ()), *frame["metric"]]):
            if (means := means_of.get((metric, skill))) is not None:
                times = [found.time for found in breaks if found.metric == metric]
                newest = {str(name): _find_newest_mean(rows) for name, rows in means.groupby("generator", sort=False)}
                over_runs = _draw_runs(metric, skill, means, generators[:N_COLOURS], times)
                over_steps = _draw_steps(metric, skill, means, families[:N_COLOURS], steps)
                panel.append(Trend(metric, metric in lower_is_better, over_runs, over_steps, newest))
    return Trends(
        benchmark=str(runs[-1].manifest.get("benchmark", "")),
        facts=[
            format_quantity(len(runs), "run"),
            f"{runs[0].time[:10]} to {runs[-1].time[:10]}",
            *([f"{format_quantity(earlier, 'earlier run')} not drawn"] if earlier else []),
            format_quantity(len(found), "generator"),
        ],
        warnings=[*warnings, *_warn_about_win_rates(runs[-1])],
        generators=take_first_rows(generators, N_COLOURS),
        families=take_first_rows(families, N_COLOURS),
        listed=take_first_rows(
            [(name, "" if last[name] == runs[-1].time else str(last[name])[:10]) for name in order],
            MAX_LISTED_GENERATORS,
        ),
        breaks=take_first_rows([*altered[::-1], *(found.sentence for found in reversed(breaks))], MAX_LISTED_BREAKS),
        panels=panels,
        skills_left_out=max(len(skills) - MAX_SKILLS - 1, 0),
    )


def _bridge_means(frame: pd.DataFrame, breaks: Sequence[TrendBreak]) -> pd.DataFrame:
    """Return the frame with a column `line`; means with the same value of `line` are connected by one line.

    Means from before a bridge are mapped to the new scale, and their intervals are widened by the bridge's margin.
    Skills without a margin stay unchanged.
    """
    frame = frame.assign(line=frame["recipe"])
    for metric in {found.metric for found in breaks}:
        of_metric = frame["metric"] == metric
        first = frame.loc[of_metric, "recipe"].min()
        own = (found.bridge for found in breaks if found.metric == metric)
        for recipe, bridge in enumerate(own, start=first + 1):
            if bridge is None:
                continue
            margins = frame["skill"].map(bridge.margins)
            before = of_metric & (frame["line"] == recipe - 1) & margins.notna()
            means, low, high = frame.loc[before, ["mean", "low", "high"]].to_numpy(float).T
            mapped = bridge.line(means)
            ends = np.sort([bridge.line(np.where(np.isnan(end), means, end)) for end in (low, high)], axis=0)
            below, above = np.hypot(ends - mapped, margins[before].to_numpy(float))
            frame.loc[before, ["mean", "low", "high"]] = np.stack([mapped, mapped - below, mapped + above], axis=1)
            frame.loc[before, "line"] = recipe
    return frame


def _order_generators(frame: pd.DataFrame, lower_is_better: Container[str]) -> list[str]:
    overall = frame[frame["skill"] == OVERALL]
    towards = overall["metric"].map(lambda metric: get_direction(metric, lower_is_better))
    overall = overall.assign(mean=overall["mean"] * towards)
    last = overall.groupby("generator")["began"].max()
    ranks = overall.groupby(["run_id", "metric"])["mean"].rank(ascending=False).groupby(overall["generator"]).mean()
    order = pd.DataFrame({"last": last, "rank": ranks}).sort_values(["last", "rank"], ascending=[False, True])
    return [str(name) for name in order.index]


def _draw_runs(
    metric: str, skill: str, means: pd.DataFrame, generators: Sequence[str], breaks: Sequence[str]
) -> Chart | None:
    own = means[means["generator"].isin(generators)]
    if own.empty:
        return None
    lines = [
        ChartLine(_make_points(rows["began"], rows), f"var(--s{generators.index(str(key[0]))})")
        for key, rows in own.groupby(["generator", "line", "settings"], sort=False)
    ]
    newest = [f"{name} {format_number(rows['mean'].iloc[-1])}" for name, rows in own.groupby("generator", sort=False)]
    label = f"Mean {metric} over runs, {skill}, with 95% intervals; newest: {'; '.join(newest)}"
    return draw_trend_chart(lines, breaks, label)


def _draw_steps(
    metric: str, skill: str, means: pd.DataFrame, families: Sequence[str], steps: Mapping[str, tuple[str, int]]
) -> Chart | None:
    """Draw each checkpoint's mean from the last run that scored it with the current metric or a bridged version."""
    now = means[(means["line"] == means["line"].max()) & means["generator"].isin(list(steps))]
    last = now.groupby("generator", sort=False).tail(1)
    if last.empty:
        return None
    parsed = [steps[str(name)] for name in last["generator"]]
    named = last.assign(family=[family for family, _ in parsed], step=[step for _, step in parsed])
    lines, ends = [], []
    for family, rows in named.sort_values("step").groupby("family"):
        if family in families:
            lines.append(ChartLine(_make_points(rows["step"], rows), f"var(--s{families.index(str(family))})"))
            ends.append(f"{family} {format_number(rows['mean'].iloc[-1])} at {rows['step'].iloc[-1]}")
    label = f"Mean {metric} over the steps of a training, {skill}, with 95% intervals; last: {'; '.join(ends)}"
    return draw_trend_chart(lines, [], label)


def _make_points(xs: Iterable[Any], rows: pd.DataFrame) -> list[Point]:
    """Return a point for each row; a mean without an interval (of a single prompt) gets one of length zero."""
    low, high = rows["low"].fillna(rows["mean"]), rows["high"].fillna(rows["mean"])
    return [
        Point(x if isinstance(x, str) else int(x), *values)
        for x, *values in zip(xs, rows["mean"].tolist(), low.tolist(), high.tolist(), strict=True)
    ]


def _find_newest_mean(rows: pd.DataFrame) -> NewestMean:
    *before, last = rows.tail(2).itertuples()
    # Means can be compared if the metric and the generator have the same settings.
    comparable = before and (before[0].recipe, before[0].settings) == (last.recipe, last.settings)
    change = last.mean - before[0].mean if comparable else None
    return NewestMean(last.mean, last.low, last.high, last.coverage, change)
