"""Charts of metrics' scores of error graphs, as in T2IScoreScore (figures 10 and 11, appendices B.2 and B.3)."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base.sentences import number
from plumbline.operators.metaeval.graph_correlations import CORRELATED, CorrelationMatrix, pivot_metrics
from plumbline.operators.report.charts import (
    Chart,
    NamedChart,
    Span,
    Values,
    draw,
    draw_histograms,
    short_labels,
    spoken_medians,
    spread_of,
)
from plumbline.operators.report.page_tables import MAX_GENERATORS

SPANS: dict[str, Span] = {"ordering": (-1.0, 1.0), "separation": (0.0, 1.0)}
SHOWN_PAIRS = 2
"""Number of pairs that are drawn of the most correlated metrics, and as many of the least correlated."""
MAX_SUBSETS = 5
"""Number of subsets up to which each has its own colour and shape."""
MAX_POINTS = 2000


class MetricPair(NamedTuple):
    """Two metrics with their correlation over the same graphs."""

    metric: str
    other: str
    pearson: float


def graph_charts(graphs: pd.DataFrame, matrices: Sequence[CorrelationMatrix]) -> list[NamedChart]:
    """Return scatter plots of the most and the least correlated metrics by each measure, then the metrics' histograms.

    Args:
        graphs: Every graph by metric and convention (schema GRAPHS). Only the first convention is drawn.
        matrices: The correlations over all graphs.
    """
    shown = graphs[graphs["convention"] == graphs["convention"].iloc[0]] if len(graphs) else graphs
    subsets = shown.groupby("graph_id")["subset"].first()
    scatter_plots, histograms = [], []
    for measure in CORRELATED if len(shown) else ():
        values = pivot_metrics(shown, measure)
        pairs = [pair for matrix in matrices if matrix.measure == measure for pair in shown_pairs(matrix)]
        scatter_plots += [_scatter_plot(measure, pair, values, subsets) for pair in pairs]
        histograms.append(_histograms(measure, values))
    return [*scatter_plots, *histograms]


def shown_pairs(matrix: CorrelationMatrix) -> list[MetricPair]:
    """Return the most and then the least correlated pairs, each pair once; ties keep the order of the metrics."""
    places = combinations(range(len(matrix.metrics)), 2)
    pairs = [MetricPair(matrix.metrics[one], matrix.metrics[two], matrix.values[one][two]) for one, two in places]
    ranked = sorted((pair for pair in pairs if math.isfinite(pair.pearson)), key=lambda pair: -pair.pearson)
    return [*ranked[:SHOWN_PAIRS], *ranked[max(SHOWN_PAIRS, len(ranked) - SHOWN_PAIRS) :]]


def _scatter_plot(measure: str, pair: MetricPair, values: pd.DataFrame, subsets: pd.Series) -> NamedChart:
    """Draw a point for each graph, the first metric on the y axis, coloured by subset if there are few subsets."""
    both = values[[pair.metric, pair.other]].dropna()
    shown = both.iloc[np.unique(np.linspace(0, len(both) - 1, min(len(both), MAX_POINTS)).round().astype(int))]
    names = sorted(subsets.unique())
    labels = short_labels(names) if len(names) <= MAX_SUBSETS else dict.fromkeys(names, f"{len(names)} subsets")
    points: Values = [
        {"x": float(x), "y": float(y), "subset": labels[subset]}
        for y, x, subset in zip(shown[pair.metric], shown[pair.other], subsets[shown.index], strict=True)
    ]
    points.sort(key=lambda point: point["subset"])
    low, high = SPANS[measure]
    svg = draw("scatter", {"points": points}, params=[{"name": "low", "value": low}, {"name": "high", "value": high}])
    name = f"{measure}: {pair.metric} (up) and {pair.other} (right), r {number(pair.pearson, 2)}"
    return NamedChart(name, Chart(svg, f"{name}, over {len(both)} error graphs", len(both) - len(shown)))


def _histograms(measure: str, values: pd.DataFrame) -> NamedChart:
    """Draw a histogram of each metric's scores of the graphs, with the median."""
    found = {str(metric): spread_of(column.to_numpy(np.float64), SPANS[measure]) for metric, column in values.items()}
    spreads = {metric: spread for metric, spread in found.items() if spread is not None}
    order, name = list(spreads)[:MAX_GENERATORS], f"{measure} of all graphs"
    label = f"{name}; {spoken_medians(order, spreads)}"
    return NamedChart(name, Chart(draw_histograms(order, spreads, SPANS[measure]), label, 0))
