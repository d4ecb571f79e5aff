"""Shows how metrics score error graphs, following T2IScoreScore (figures 4, 9, 10 and 11; appendices B.2 and B.3)."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from plumbline.operators.base.sentences import ShownTable, format_number, format_quantity, take_first_rows
from plumbline.operators.metaeval.graphs import CORRELATED_MEASURES, CorrelationMatrix, average_nodes, pivot_metrics
from plumbline.operators.report.charts import (
    Chart,
    ChartValues,
    NamedChart,
    Span,
    describe_medians,
    draw_from_template,
    draw_histograms,
    measure_distribution,
    shorten_labels,
)
from plumbline.operators.report.page_tables import MAX_GENERATORS

MEASURE_SPANS: dict[str, Span] = {"ordering": (-1.0, 1.0), "separation": (0.0, 1.0)}
N_SHOWN_PAIRS = 2
"""Number of pairs of metrics drawn from each end of the ranking: the most and the least correlated pairs."""
MAX_COLOURED_SUBSETS = 5
"""Maximum number of subsets drawn in different colours and shapes; if there are more, all look the same."""
MAX_POINTS = 2000


def draw_graph_charts(graphs: pd.DataFrame, matrices: Sequence[CorrelationMatrix]) -> list[NamedChart]:
    """Return scatter plots of the most and least correlated metrics on each measure, then the metrics' histograms.

    Only the first convention in `graphs` (schema GRAPHS) is drawn. `matrices` are the correlations over all graphs.
    """
    first = _select_first_convention(graphs)
    subsets = first.groupby("graph_id")["subset"].first()
    scatter_plots, histograms = [], []
    for measure in CORRELATED_MEASURES if len(first) else ():
        values = pivot_metrics(first, measure)
        for matrix in matrices:
            if matrix.measure == measure:
                scatter_plots += [_draw_scatter(measure, *pair, values, subsets) for pair in _choose_pairs(matrix)]
        found = {
            str(name): measure_distribution(column.to_numpy(np.float64), MEASURE_SPANS[measure])
            for name, column in values.items()
        }
        spreads = {metric: spread for metric, spread in found.items() if spread is not None}
        order, name = list(spreads)[:MAX_GENERATORS], f"{measure} of all graphs"
        svg = draw_histograms(order, spreads, MEASURE_SPANS[measure])
        histograms.append(NamedChart(name, Chart(svg, f"{name}; {describe_medians(order, spreads)}", 0)))
    return [*scatter_plots, *histograms]


def _select_first_convention(graphs: pd.DataFrame) -> pd.DataFrame:
    return graphs[graphs["convention"] == graphs["convention"].iloc[0]] if len(graphs) else graphs


def _choose_pairs(matrix: CorrelationMatrix) -> list[tuple[str, str, float]]:
    pairs = [
        (matrix.metrics[first], matrix.metrics[second], matrix.values[first][second])
        for first, second in combinations(range(len(matrix.metrics)), 2)
        if math.isfinite(matrix.values[first][second])
    ]
    ranked = sorted(pairs, key=lambda pair: -pair[2])
    return [*ranked[:N_SHOWN_PAIRS], *ranked[max(N_SHOWN_PAIRS, len(ranked) - N_SHOWN_PAIRS) :]]


def _draw_scatter(
    measure: str, metric: str, other: str, pearson: float, values: pd.DataFrame, subsets: pd.Series
) -> NamedChart:
    """Return a scatter plot with a point for each graph: two metrics' values, the first one on the y axis.

    Points are coloured by subset if there are few subsets.
    """
    both = values[[metric, other]].dropna()
    shown = both.iloc[_sample_evenly(len(both), MAX_POINTS)]
    names = sorted(subsets.unique())
    labels = (
        shorten_labels(names) if len(names) <= MAX_COLOURED_SUBSETS else dict.fromkeys(names, f"{len(names)} subsets")
    )
    points: ChartValues = [
        {"x": float(x), "y": float(y), "subset": labels[subset]}
        for y, x, subset in zip(shown[metric], shown[other], subsets[shown.index], strict=True)
    ]
    points.sort(key=lambda point: point["subset"])
    low, high = MEASURE_SPANS[measure]
    svg = draw_from_template("scatter", {"points": points}, {"low": low, "high": high})
    name = f"{measure}: {metric} (up) and {other} (right), r {format_number(pearson, 2)}"
    return NamedChart(name, Chart(svg, f"{name}, over {len(both)} error graphs", len(both) - len(shown)))


def _sample_evenly(count: int, limit: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))


N_SHOWN_METRICS = 2
"""Number of metrics drawn from each end of the ranking: those that order a graph's images best and worst."""
MAX_TABLE_METRICS = 10
MAX_NODE_LINES = 6
MAX_TABLE_NODES = 20
MAX_LINE_IMAGES = 200
NO_ERROR_NAME = "no error"
"""Name shown for the node without errors if the published data give it none."""
ERRORS_LABEL = "(errors)"
"""Label of the line that shows each image's number of errors."""


class ShownGraph(NamedTuple):
    """An error graph that the report shows as an example, with charts and tables of its scores."""

    title: str
    """Name of the graph, and why it is shown."""
    charts: list[NamedChart]
    means: ShownTable


def make_shown_graphs(graphs: pd.DataFrame, images: pd.DataFrame) -> list[ShownGraph]:
    """Return the graphs that metrics order best, order worst, and disagree on most, with the scores of their images.

    Only the first convention in `graphs` (schema GRAPHS) is used. `images` lists the images of the graphs (schema
    GRAPH_IMAGES).
    """
    first = _select_first_convention(graphs)
    orderings, separations = (pivot_metrics(first, measure) for measure in ("ordering", "separation"))
    by_graph = dict(list(images.groupby("graph_id", sort=False)))
    shown = []
    for graph_id, reason in _choose_graphs(orderings, images).items():
        own, separation = by_graph[graph_id], separations.loc[graph_id]
        charts = [_draw_images(own, orderings.loc[graph_id])]
        ranked = separation.dropna().sort_values(kind="stable", ascending=False).index
        for metric in dict.fromkeys([*ranked[:1], *ranked[-1:]]):
            title = f"{metric}, separation {format_number(separation[metric], 2)}"
            charts.append(_draw_node_distributions(own[own["metric"] == metric], title))
        shown.append(ShownGraph(f"Graph {graph_id}, {reason}", charts, _tabulate_means(own)))
    return shown


def _choose_graphs(orderings: pd.DataFrame, images: pd.DataFrame) -> dict[str, str]:
    """Return at most three graphs that are worth showing, each with the reason.

    If several graphs qualify equally for a reason, the largest is chosen. A graph qualifies if its scored images have
    different numbers of errors, and if it has a value for every metric that has any values.
    """
    sizes = (
        images.dropna(subset=["score"])
        .groupby("graph_id")
        .agg(levels=("level", "nunique"), images=("image_id", "nunique"))
    )
    known = orderings.dropna(axis=1, how="all").dropna().join(sizes[sizes["levels"] > 1]["images"], how="inner")
    known = known.loc[known.reset_index().sort_values(["images", "graph_id"], ascending=[False, True])["graph_id"]]
    values = known.drop(columns="images")
    if values.empty:
        return {}
    # Rounded, so that values that differ only by rounding errors count as equal, and the largest graph is chosen.
    means, spread = values.mean(axis=1).round(9), (values.max(axis=1) - values.min(axis=1)).round(9)
    best, worst, differing = means.idxmax(), means.idxmin(), spread.idxmax()
    low, high = values.loc[differing].idxmin(), values.loc[differing].idxmax()
    # If a graph is chosen twice, the later reason is kept.
    reasons = {
        str(
            differing
        ): f"on which metrics differ most: ordering {format_number(values.loc[differing, low], 2)} by {low}, "
        f"{format_number(values.loc[differing, high], 2)} by {high}",
        str(worst): f"whose images metrics order worst: mean ordering {format_number(float(means[worst]), 2)}",
        str(best): f"whose images metrics order best: mean ordering {format_number(float(means[best]), 2)}",
    }
    return dict(reversed(reasons.items()))


def _draw_images(images: pd.DataFrame, orderings: "pd.Series[float]") -> NamedChart:
    """Return a chart of the images' scores and error counts, as lines scaled from 0 to 1."""
    ranked = list(orderings.sort_values(kind="stable", ascending=False).index)
    metrics = list(dict.fromkeys([*ranked[:N_SHOWN_METRICS], *ranked[-N_SHOWN_METRICS:]]))
    wide = images.pivot(index=["level", "node", "image_id"], columns="metric", values="score")[metrics]
    lines = {ERRORS_LABEL: wide.index.get_level_values("level").to_numpy(np.float64)}
    lines |= {str(metric): wide[metric].to_numpy(np.float64) for metric in metrics}
    drawn, labels = _sample_evenly(len(wide), MAX_LINE_IMAGES), shorten_labels([*lines])
    points: ChartValues = [
        {"x": int(x), "y": float(y), "name": labels[name]}
        for name, values in lines.items()
        for x, y in zip(drawn, _scale_to_unit(values)[drawn], strict=True)
        if np.isfinite(y)
    ]
    spoken = "; ".join(f"{metric} {format_number(float(orderings[metric]), 2)}" for metric in metrics)
    svg = _draw_lines(points, (0.0, max(len(wide) - 1.0, 1.0)), "linear")
    name = f"scores of {format_quantity(len(wide), 'image')}"
    return NamedChart(name, Chart(svg, f"{name} by number of errors; ordering: {spoken}", len(ranked) - len(metrics)))


def _scale_to_unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    return (values - low) / (high - low) if high > low else np.where(np.isfinite(values), 0.5, values)


def _draw_node_distributions(rows: pd.DataFrame, title: str) -> NamedChart:
    """Return a chart with the cumulative distribution of the images' scores for each of the first MAX_NODE_LINES nodes.

    `rows` must have at least one score.
    """
    scored = rows.dropna(subset="score")
    low, high = float(scored["score"].min()), float(scored["score"].max())
    nodes = [
        (node or NO_ERROR_NAME, its["score"].sort_values()) for (_, node), its in scored.groupby(["level", "node"])
    ]
    drawn, left_out = take_first_rows(nodes, MAX_NODE_LINES)
    labels = shorten_labels([node for node, _ in drawn])
    points: ChartValues = [
        {"x": float(x), "y": float(y), "name": labels[node]}
        for node, scores in drawn
        for x, y in zip([low, *scores, high], [0, *np.arange(1, len(scores) + 1) / len(scores), 1], strict=True)
    ]
    medians = "; ".join(f"{node} {format_number(float(scores.median()))}" for node, scores in drawn)
    svg = _draw_lines(points, (low, high) if high > low else (low - 0.5, high + 0.5), "step-after")
    return NamedChart(title, Chart(svg, f"{title}; medians by node: {medians}", left_out))


def _draw_lines(points: ChartValues, span: Span, interpolate: str) -> Markup:
    mark = {"type": "line", "interpolate": interpolate, "strokeWidth": 2}
    return draw_from_template("lines", {"points": points}, {"low": span[0], "high": span[1]}, mark=mark)


def _tabulate_means(images: pd.DataFrame) -> ShownTable:
    means = average_nodes(images)
    metrics, more_metrics = take_first_rows(list(means["metric"].unique()), MAX_TABLE_METRICS)
    sizes = images.groupby(["level", "node"])["image_id"].nunique()
    nodes, more_nodes = take_first_rows([*sizes.index], MAX_TABLE_NODES)
    cells = {(row.node, row.metric): format_number(row.mean) for row in means.itertuples(index=False)}
    lines = [
        (node or NO_ERROR_NAME, str(level), str(sizes[level, node]), *(cells[node, metric] for metric in metrics))
        for level, node in nodes
    ]
    more = " and ".join(
        format_quantity(count, word)
        for count, word in ((more_metrics, "more metric"), (more_nodes, "more node"))
        if count
    )
    left_out = f" {more} in graph_means.parquet." if more else ""
    caption = f"Means over the scored images of each node, as the metrics return them.{left_out}"
    return ShownTable("mean scores by node", caption, ("node", "errors", "images", *metrics), lines)
