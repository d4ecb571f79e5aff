"""Shows a few interesting error graphs with the scores of their nodes and images.

They follow T2IScoreScore, figures 4 and 9, and the lines after appendix B.3.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from plumbline.operators.base.sentences import ShownTable, first_rows, number, plural
from plumbline.operators.metaeval.graph_correlations import pivot_metrics
from plumbline.operators.metaeval.graph_scores import average_nodes
from plumbline.operators.report.charts import Chart, NamedChart, Values, draw, short_labels

SHOWN_METRICS = 2
"""Number of metrics with a line: this many that order a graph's images best, and as many that order them worst."""
MAX_METRICS = 10
"""Metrics in a table of means."""
MAX_NODES = 6
"""Nodes of a graph with a line each."""
MAX_ROWS = 20
"""Nodes in a table of means."""
MAX_IMAGES = 200
"""Images on a line."""
NO_ERROR = "no error"
"""The node of a release that has no name for images without errors."""
ERRORS = "(errors)"
"""The line of the images' numbers of errors."""


class ShownGraph(NamedTuple):
    """An error graph on the page."""

    title: str
    """Its name, and why it is shown."""
    charts: list[NamedChart]
    means: ShownTable


class ChosenGraph(NamedTuple):
    """An error graph to show, with the reason."""

    graph_id: str
    reason: str


def show_graphs(graphs: pd.DataFrame, images: pd.DataFrame) -> list[ShownGraph]:
    """Return three graphs: those that metrics order best, worst and most differently.

    Args:
        graphs: Every graph by metric and convention (schema GRAPHS). Only the first convention counts.
        images: The scores of the graphs' images (schema GRAPH_IMAGES).
    """
    first = graphs[graphs["convention"] == graphs["convention"].iloc[0]] if len(graphs) else graphs
    orderings, separations = (pivot_metrics(first, measure) for measure in ("ordering", "separation"))
    by_graph = dict(list(images.groupby("graph_id", sort=False)))
    return [
        _show(chosen, by_graph[chosen.graph_id], orderings.loc[chosen.graph_id], separations.loc[chosen.graph_id])
        for chosen in choose_graphs(orderings, images)
    ]


def choose_graphs(orderings: pd.DataFrame, images: pd.DataFrame) -> list[ChosenGraph]:
    """Return at most three graphs, each with the reason; of equal graphs, the largest.

    A graph is not chosen if all its scored images have the same number of errors, or if a metric that has values for
    other graphs has none for it.
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
        return []
    means, spread = values.mean(axis=1).round(9), (values.max(axis=1) - values.min(axis=1)).round(9)
    best, worst, differing = means.idxmax(), means.idxmin(), spread.idxmax()
    low, high = values.loc[differing].idxmin(), values.loc[differing].idxmax()
    reasons = {
        str(differing): f"on which metrics differ most: ordering {number(values.loc[differing, low], 2)} by {low}, "
        f"{number(values.loc[differing, high], 2)} by {high}",
        str(worst): f"whose images metrics order worst: mean ordering {number(float(means[worst]), 2)}",
        str(best): f"whose images metrics order best: mean ordering {number(float(means[best]), 2)}",
    }
    return [ChosenGraph(graph_id, reason) for graph_id, reason in reversed(reasons.items())]


def _show(
    chosen: ChosenGraph, images: pd.DataFrame, orderings: "pd.Series[float]", separations: "pd.Series[float]"
) -> ShownGraph:
    charts = [_lines(images, orderings)]
    ranked = separations.dropna().sort_values(kind="stable", ascending=False).index
    for metric in dict.fromkeys([*ranked[:1], *ranked[-1:]]):
        charts.append(_shares(images[images["metric"] == metric], f"{metric}, separation", separations[metric]))
    return ShownGraph(f"Graph {chosen.graph_id}, {chosen.reason}", charts, _table(images))


def _lines(images: pd.DataFrame, orderings: "pd.Series[float]") -> NamedChart:
    """Draw the scores of the images as lines, and their numbers of errors, each from 0 to 1."""
    ranked = list(orderings.sort_values(kind="stable", ascending=False).index)
    metrics = list(dict.fromkeys([*ranked[:SHOWN_METRICS], *ranked[-SHOWN_METRICS:]]))
    wide = images.pivot(index=["level", "node", "image_id"], columns="metric", values="score")[metrics]
    lines = {ERRORS: wide.index.get_level_values("level").to_numpy(np.float64)}
    lines |= {str(metric): wide[metric].to_numpy(np.float64) for metric in metrics}
    drawn = np.unique(np.linspace(0, len(wide) - 1, min(len(wide), MAX_IMAGES)).round().astype(int))
    labels = short_labels([*lines])
    points: Values = [
        {"x": int(x), "y": float(y), "name": labels[name]}
        for name, values in lines.items()
        for x, y in zip(drawn, _scale_to_unit(values)[drawn], strict=True)
        if np.isfinite(y)
    ]
    values = "; ".join(f"{metric} {number(float(orderings[metric]), 2)}" for metric in metrics)
    svg = _draw(points, (0.0, max(len(wide) - 1.0, 1.0)), "linear")
    name = f"scores of {plural(len(wide), 'image')}"
    return NamedChart(name, Chart(svg, f"{name} by number of errors; ordering: {values}", len(ranked) - len(metrics)))


def _scale_to_unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale values linearly to the range from 0 to 1; return 0.5 if all are equal."""
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    return (values - low) / (high - low) if high > low else np.where(np.isfinite(values), 0.5, values)


def _shares(rows: pd.DataFrame, title: str, separation: float) -> NamedChart:
    """Draw the cumulative distribution of the images' scores for each node."""
    scored = rows.dropna(subset="score")
    low, high = float(scored["score"].min()), float(scored["score"].max())
    nodes = [(node or NO_ERROR, its["score"].sort_values()) for (_, node), its in scored.groupby(["level", "node"])]
    drawn, left_out = first_rows(nodes, MAX_NODES)
    labels = short_labels([node for node, _ in drawn])
    points: Values = [
        {"x": float(x), "y": float(y), "name": labels[node]}
        for node, scores in drawn
        for x, y in zip([low, *scores, high], [0, *np.arange(1, len(scores) + 1) / len(scores), 1], strict=True)
    ]
    name = f"{title} {number(separation, 2)}"
    medians = "; ".join(f"{node} {number(float(scores.median()))}" for node, scores in drawn)
    svg = _draw(points, (low, high) if high > low else (low - 0.5, high + 0.5), "step-after")
    return NamedChart(name, Chart(svg, f"{name}; medians by node: {medians}", left_out))


def _draw(points: Values, span: tuple[float, float], interpolate: str) -> Markup:
    params = [{"name": "low", "value": span[0]}, {"name": "high", "value": span[1]}]
    mark = {"type": "line", "interpolate": interpolate, "strokeWidth": 2}
    return draw("lines", {"points": points}, params=params, mark=mark)


def _table(images: pd.DataFrame) -> ShownTable:
    """Return the mean scores with a row for each node and a column for each metric."""
    means = average_nodes(images)
    metrics, more_metrics = first_rows(list(means["metric"].unique()), MAX_METRICS)
    sizes = images.groupby(["level", "node"])["image_id"].nunique()
    nodes, more_nodes = first_rows([*sizes.index], MAX_ROWS)
    cells = {(row.node, row.metric): number(row.mean) for row in means.itertuples(index=False)}
    lines = [
        (node or NO_ERROR, str(level), str(sizes[level, node]), *(cells[node, metric] for metric in metrics))
        for level, node in nodes
    ]
    more = " and ".join(
        plural(count, word) for count, word in ((more_metrics, "more metric"), (more_nodes, "more node")) if count
    )
    left_out = f" {more} in graph_means.parquet." if more else ""
    caption = f"Means over the scored images of each node, as the metrics return them.{left_out}"
    return ShownTable("mean scores by node", caption, ("node", "errors", "images", *metrics), lines)
