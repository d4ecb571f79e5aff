"""Draws charts as inline SVG; they are declared in Vega-Lite (templates/*.vl.json) and drawn by vl-convert.

An SVG appears at once, needs no scripts and no network, and can be printed. It follows the light and dark themes,
because its colours are the page's CSS variables. Names are data values, never expressions, and Vega escapes them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from markupsafe import Markup
from numpy.typing import NDArray

from plumbline.operators.base.errors import MissingExtraError, replace_invisible
from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.operators.base.sentences import format_interval, format_number
from plumbline.operators.metaeval.corrected_means import CorrectedMean
from plumbline.operators.metaeval.corrected_tables import group_single_means
from plumbline.operators.report.page_tables import MAX_GENERATORS
from plumbline.operators.results.comparison import Board

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
ROW_HEIGHT = 30
MAX_LABEL_CHARACTERS = 15
N_BINS = 32
MAX_MARKED_POINTS = 40
"""Maximum number of times or steps in a trend at which every point is marked; if there are more, only the last point of
each line is.
"""
VIOLIN_STEPS = 96
"""Number of points at which the width of a violin is computed."""
MAX_HALF_WIDTH = 0.44
"""Maximum half-width of a violin, as a fraction of its row's height."""
MIN_BANDWIDTH = 1.0
"""Minimum bandwidth of a violin's density, in steps."""

ChartValues = list[dict[str, Any]]


class Chart(NamedTuple):
    svg: Markup
    label: str
    """Description for screen readers."""
    left_out: int
    """Number of generators omitted because there are too many for one chart."""


class NamedChart(NamedTuple):
    """A chart with its title and the direction of its metric."""

    name: str
    chart: Chart
    lower_is_better: bool = False


class Point(NamedTuple):
    """A mean and the ends of its interval, at a time in ISO format or at a training step."""

    x: str | int
    mean: float
    low: float
    high: float


class ChartLine(NamedTuple):
    """Points whose means can be compared, to be connected by a line of the given CSS colour."""

    points: Sequence[Point]
    colour: str


def shorten_labels(names: Sequence[str]) -> dict[str, str]:
    """Return a unique label for each name, usually of at most MAX_LABEL_CHARACTERS characters.

    The names of checkpoints from one training run often differ only at the end, so long names are shortened in the
    middle. Invisible characters are replaced, because control characters make vl-convert crash.
    """
    shown = [replace_invisible(name) for name in names]
    for head in (5, MAX_LABEL_CHARACTERS - 1, 0):  # number of characters kept in front; the others are kept at the end
        tail = MAX_LABEL_CHARACTERS - 1 - head
        labels = [
            name if len(name) <= MAX_LABEL_CHARACTERS else f"{name[:head]}…{name[len(name) - tail :]}" for name in shown
        ]
        if len({*labels}) == len({*names}):
            return dict(zip(names, labels, strict=True))
    return {name: f"{number} {shown[number - 1][: MAX_LABEL_CHARACTERS - 4]}…" for number, name in enumerate(names, 1)}


def draw_interval_chart(board: Board) -> Chart:
    """Return a chart of the means of the best MAX_GENERATORS generators, with intervals; leaders are highlighted."""
    scored = board.list_scored_rows()[:MAX_GENERATORS]
    first = board.find_highlighted_generators()
    labels = shorten_labels([row.generator for row in scored])
    means = [
        {
            "generator": labels[row.generator],
            "mean": row.mean,
            "low": row.interval_ends[0],
            "high": row.interval_ends[1],
            "colour": "var(--accent)" if row.generator in first else "var(--soft)",
        }
        for row in scored
    ]
    values = [f"{row.generator} {format_number(row.mean)} ({format_interval(row.low, row.high)})" for row in scored]
    better = ", lower is better" if board.lower_is_better else ""
    label = f"Mean {board.metric} with 95% intervals{better}: {'; '.join(values)}"
    return Chart(draw_from_template("interval", {"means": means}), label, len(board.rows) - len(scored))


def draw_corrected_charts(means: Sequence[CorrectedMean]) -> list[NamedChart]:
    """Return a chart of the generators' corrected means with intervals for each template and metric, best mean first.

    A chart shows at most MAX_GENERATORS generators. Generators without an interval and empty charts are left out.
    Small marks show the means based on people's ratings alone and on the metric alone.
    """
    charts = []
    for (template, metric), rows in group_single_means(means).items():
        drawn = [row for row in rows if math.isfinite(row.low)][:MAX_GENERATORS]
        labels = shorten_labels([row.generator for row in drawn])
        corrected = [
            {"generator": labels[row.generator], "mean": row.corrected, "low": row.low, "high": row.high}
            for row in drawn
        ]
        alone = [
            {"generator": labels[row.generator], "x": value, "shape": shape}
            for row in drawn
            for value, shape in ((row.people, "circle"), (row.predicted, "diamond"))
        ]
        values = [
            f"{row.generator} {format_number(row.corrected, 2)} ({format_number(row.low, 2)} to "
            f"{format_number(row.high, 2)}), people alone "
            f"{format_number(row.people, 2)}, {metric} alone {format_number(row.predicted, 2)}"
            for row in drawn
        ]
        label = f"Generators by {template}, corrected with {metric}, with 95% intervals: {'; '.join(values)}"
        if drawn:
            svg = draw_from_template("corrected", {"means": corrected, "alone": alone})
            charts.append(NamedChart(f"{template}, with {metric}", Chart(svg, label, len(rows) - len(drawn))))
    return charts


class ScoreDistribution(NamedTuple):
    """Distribution of one generator's scores: the median, and a histogram."""

    median: float
    counts: NDArray[np.int64]
    """Number of scores in each of N_BINS bins, from the metric's lowest score to its highest."""


Span = tuple[float, float]
"""Lowest and highest score on a metric: the range of a chart's axis."""


def measure_distribution(scores: NDArray[np.float64], span: Span) -> ScoreDistribution | None:
    """Return the distribution of a generator's scores, or None if it has no scores."""
    values = scores[~np.isnan(scores)]
    return (
        ScoreDistribution(float(np.median(values)), np.histogram(values, _compute_bin_edges(span))[0])
        if len(values)
        else None
    )


def _compute_bin_edges(span: Span) -> NDArray[np.float64]:
    low, high = span
    return np.linspace(low, high, N_BINS + 1) if high > low else np.linspace(low - 0.5, high + 0.5, N_BINS + 1)


def draw_distribution_chart(board: Board, spreads: Mapping[str, ScoreDistribution], span: Span) -> Chart:
    """Return a chart with a histogram of each generator's scores and its median, best mean first."""
    order = [row.generator for row in board.list_scored_rows()[:MAX_GENERATORS] if row.generator in spreads]
    label = f"Distribution of {board.metric}; {describe_medians(order, spreads)}"
    return Chart(draw_histograms(order, spreads, span), label, len(board.rows) - len(order))


def describe_medians(order: Sequence[str], spreads: Mapping[str, ScoreDistribution]) -> str:
    """Return text that lists each generator's median score, in the given order, for screen readers."""
    return f"medians: {'; '.join(f'{name} {format_number(spreads[name].median)}' for name in order)}"


def draw_histograms(order: Sequence[str], spreads: Mapping[str, ScoreDistribution], span: Span) -> Markup:
    """Return an SVG with a histogram per row: heights are square roots of counts, and the tallest bar fills the row."""
    xs = np.round(_compute_bin_edges(span), 6).tolist()
    bars = []
    for row, name in enumerate(order):
        counts = spreads[name].counts
        heights = 0.86 * np.sqrt(counts / max(counts.max(), 1))
        bars += [
            {"row": row + 0.94, "top": row + 0.94 - round(float(height), 3), "x": xs[bin_], "x2": xs[bin_ + 1]}
            for bin_, height in enumerate(heights)
            if height
        ]
    return draw_rows(order, bars, [spreads[name].median for name in order], span)


def draw_rows(order: Sequence[str], bars: ChartValues, medians: Sequence[float], span: Span) -> Markup:
    """Draw one row for each name, from top to bottom in the given `order`, with bars and a mark at the median.

    Each bar extends vertically from its `row` to its `top`, both measured in rows from the top of the chart.
    """
    labels = shorten_labels(order)
    data: dict[str, ChartValues] = {
        "bars": bars,
        "medians": [{"row": row + 0.94, "top": row + 0.1, "x": median} for row, median in enumerate(medians)],
        "names": [{"row": row + 0.62, "generator": labels[name]} for row, name in enumerate(order)],
    }
    rows, edges = max(len(order), 1), _compute_bin_edges(span)
    params = {"rows": rows, "low": float(edges[0]), "high": float(edges[-1])}
    return draw_from_template("distribution", data, params, height=ROW_HEIGHT * rows)


def draw_trend_chart(lines: Sequence[ChartLine], breaks: Sequence[str | int], label: str) -> Chart:
    """Return a chart of means over time, or over training steps, with their intervals as bands.

    All points of a ChartLine are connected. Dashed vertical lines are drawn at `breaks` (ISO times or steps). If there
    are more than MAX_MARKED_POINTS times or steps, only the last point of each line is marked. The `label` is for
    screen readers.
    """
    means = [
        {**point._asdict(), "colour": line.colour, "segment": number}
        for number, line in enumerate(lines)
        for point in line.points
    ]
    lasts = [sum(len(line.points) for line in lines[: number + 1]) - 1 for number in range(len(lines))]
    marks = means if len({row["x"] for row in means}) <= MAX_MARKED_POINTS else [means[last] for last in lasts]
    timed = bool(means) and isinstance(means[0]["x"], str)
    labels = {"labelOverlap": "greedy", "format": {"hours": "%H:%M", "minutes": "%H:%M"}} if timed else {"format": "~s"}
    axis = {"grid": False, "tickCount": 5, **labels}
    scale = {"type": "temporal", "scale": {"type": "utc"}} if timed else {"type": "quantitative"}
    x = {"field": "x", "axis": axis, **scale}
    data: dict[str, ChartValues] = {"means": means, "marks": marks, "breaks": [{"x": at} for at in breaks]}
    return Chart(draw_from_template("trend", data, encoding={"x": x}), label, 0)


def draw_violin_charts(ratings: pd.DataFrame) -> list[NamedChart]:
    """Return violin plots of people's mean ratings of images by generator, for each template, best mean first.

    They follow Gecko, figures 14 and 15. Each shows at most MAX_GENERATORS generators. Ratings are rescaled to 0 to 1
    if the template's scale is known. `ratings` has a row for every rated image and template (schema MEAN_RATINGS).
    """
    charts = []
    for template, rows in ratings[ratings["generator"].notna()].groupby("template"):
        is_known = bool(rows["rating_0_1"].notna().all())
        values = rows["rating_0_1" if is_known else "rating"].astype(np.float64)
        span = (0.0, 1.0) if is_known else (float(values.min()), float(values.max()))
        found = [(str(name), of_generator.to_numpy()) for name, of_generator in values.groupby(rows["generator"])]
        shown = sorted(found, key=lambda generator: -float(generator[1].mean()))[:MAX_GENERATORS]
        order, medians = [name for name, _ in shown], [float(np.median(own)) for _, own in shown]
        bars = [bar for row, (_, own) in enumerate(shown) for bar in _draw_violin(row, own, span)]
        spoken = "; ".join(f"{name} {format_number(median, 2)}" for name, median in zip(order, medians, strict=True))
        label = f"Mean ratings of images by {template}; medians: {spoken}"
        chart = Chart(draw_rows(order, bars, medians, span), label, len(found) - len(shown))
        charts.append(NamedChart(f"ratings by {template}", chart))
    return charts


def _draw_violin(row: int, values: NDArray[np.float64], span: Span) -> ChartValues:
    """Return the bars of one violin: a density mirrored about the centre of its row.

    The kernel is Gaussian with Silverman's bandwidth, and any density beyond the ends of the span is reflected.
    """
    counts, edges = np.histogram(values, VIOLIN_STEPS, span if span[1] > span[0] else (span[0] - 0.5, span[1] + 0.5))
    quartiles = np.subtract(*np.percentile(values, [75, 25])) / 1.34
    width = 0.9 * min(values.std(), quartiles or values.std()) * len(values) ** -0.2 / (edges[1] - edges[0])
    density = scipy.ndimage.gaussian_filter1d(counts.astype(np.float64), max(width, MIN_BANDWIDTH), mode="reflect")
    halves, xs = np.round(MAX_HALF_WIDTH * density / density.max(), 3), np.round(edges, 6).tolist()
    return [
        {"row": row + 0.5 + float(half), "top": row + 0.5 - float(half), "x": xs[step], "x2": xs[step + 1]}
        for step, half in enumerate(halves)
        if half
    ]


def draw_from_template(
    name: str, data: dict[str, ChartValues], params: Mapping[str, float] = MappingProxyType({}), **options: Any
) -> Markup:
    """Draw a template with the given datasets and parameters, as an SVG that scales with its container.

    The SVG is hidden from screen readers, because its container has the chart's label. `options` override properties of
    the template. Without vl-convert, a sentence that says so takes the place of the SVG.
    """
    try:
        with explain_missing_extra("charts", "A chart"):
            import vl_convert
    except MissingExtraError as missing:
        return Markup('<p class="note">{}</p>').format(f"{missing}.")

    def read_template(file: str) -> dict[str, Any]:
        template: dict[str, Any] = json.loads((TEMPLATES_FOLDER / f"{file}.vl.json").read_text("utf-8"))
        return template

    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": read_template("config"),
        "padding": {"left": 14, "right": 8, "top": 4, "bottom": 4},
        "datasets": data,
        "params": [{"name": param, "value": value} for param, value in params.items()],
        **read_template(name),
        **options,
    }
    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])  # do not load anything
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    return Markup(svg.replace("<svg ", '<svg aria-hidden="true" ', 1))
