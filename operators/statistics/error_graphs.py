"""T2IScoreScore's meta-metrics: does a metric order and separate images by their number of errors?

The nodes of a semantic error graph contain images of the same prompt. A node is defined by a set of errors, and its
level is the number of errors. A walk contains one node from every level. Source: Saxon et al. 2024, Who Evaluates the
Evaluations?, section 4. The released numbers do not follow from the paper's formulas, and the code has
changed since, hence three conventions.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import Convention

Floats = NDArray[np.float64]


class GraphScores(NamedTuple):
    """Measures of how well each metric orders and separates the images of one graph, as arrays (metrics,).

    Correlations are negative if scores decrease with errors.
    """

    spearman: Floats
    kendall: Floats
    separation: Floats
    delta: Floats


class ErrorNode(NamedTuple):
    """Node of an error graph: the scores of all images with the same set of errors."""

    level: int
    scores: Floats  # (images, metrics), nan if missing


def score_graphs(nodes: pd.DataFrame, scores: pd.DataFrame, convention: Convention) -> pd.DataFrame:
    """Return spearman, kendall, separation (0 to 1) and delta (in score units) for every graph and metric.

    Args:
        nodes: A row per image, with graph_id, image_id, node and level.
        scores: A row per image_id and a column per metric. Images without a row count as not scored.
        convention: The convention of T2IScoreScore.
    """
    graphs, ids = pd.factorize(nodes["graph_id"])
    values = scores.reindex(nodes["image_id"]).to_numpy(np.float64)
    names, levels = nodes["node"].to_numpy(), nodes["level"].to_numpy()
    measured = []
    for rows in np.split(np.argsort(graphs, kind="stable"), np.cumsum(np.bincount(graphs))[:-1]):
        rows_by_node: dict[object, list[int]] = {}
        for row in rows:
            rows_by_node.setdefault(names[row], []).append(row)
        graph = [ErrorNode(int(levels[own[0]]), values[own]) for own in rows_by_node.values()]
        measured.append(score_graph(sorted(graph, key=lambda node: node.level), convention))
    columns = {name: np.concatenate([getattr(graph, name) for graph in measured]) for name in GraphScores._fields}
    metrics = np.tile(scores.columns.to_numpy(), len(ids))
    return pd.DataFrame({"metric": metrics, **columns, "graph_id": np.repeat(ids, len(scores.columns))})


def score_graph(nodes: Sequence[ErrorNode], convention: Convention) -> GraphScores:
    """Return the meta-metrics of one graph; 0 if it has only one level, because then there is nothing to order.

    With `current`, the values of a metric that has no score are nan, and so are the correlations of a graph without a
    root.
    """
    walks = list(iterate_walks(nodes, root_pairs=convention == "published"))
    if convention == "current":
        n_metrics = nodes[0].scores.shape[1]
        walks = walks if any(node.level == 0 for node in nodes) else []
        scored = np.reshape([_count_scores(walk) for walk in walks], (-1, n_metrics))
        weights = np.where(scored > 1, scored, 0.0)
        orders = np.reshape([_correlate_walk(walk, "average") for walk in walks], (-1, 2, n_metrics))
        separation, delta = np.where(_count_scores(nodes) > 0, _compare_nodes(nodes), math.nan)
        return GraphScores(
            _average_walks(orders[:, 0], weights), _average_walks(orders[:, 1], weights), separation, delta
        )
    sizes = [sum(len(node.scores) for node in walk) if convention == "published" else 1 for walk in walks]
    weights = np.array(sizes, np.float64)[:, None]
    orders = np.array([_correlate_walk(walk, "min" if convention == "paper" else "average") for walk in walks])
    separations, deltas = [], []
    for walk in walks:
        pairs = list(pairwise(walk) if convention == "paper" else combinations(walk, 2))
        distances = [compute_kolmogorov_smirnov(first.scores, second.scores) for first, second in pairs]
        separations.append(np.mean(distances, axis=0) if pairs else np.zeros(orders.shape[-1]))
        falls = [_compute_mean_scores(above) - _compute_mean_scores(below) for above, below in pairwise(walk)]
        deltas.append(np.mean(falls, axis=0) if falls else np.zeros(orders.shape[-1]))
    return GraphScores(
        *(_average_walks(values, weights) for values in (orders[:, 0], orders[:, 1], separations, deltas))
    )


def iterate_walks(nodes: Sequence[ErrorNode], *, root_pairs: bool) -> Iterator[tuple[ErrorNode, ...]]:
    """Yield every combination of one node per level.

    With `root_pairs`, each combination starts with an ordered pair of roots instead of a single root.
    """
    levels = [[node for node in nodes if node.level == level] for level in sorted({node.level for node in nodes})]
    roots = [node for node in nodes if node.level == 0]
    if root_pairs and roots:
        heads = [ErrorNode(0, np.concatenate([first.scores, second.scores])) for first, second in product(roots, roots)]
        levels = [heads, *levels[1:]]
    yield from product(*levels)


def _count_scores(nodes: Sequence[ErrorNode]) -> Floats:
    return np.asarray(np.isfinite(np.concatenate([node.scores for node in nodes])).sum(axis=0), np.float64)


def _average_walks(values: Sequence[Floats] | Floats, weights: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.asarray((np.asarray(values) * weights).sum(axis=0) / weights.sum(axis=0))


def _correlate_walk(walk: Sequence[ErrorNode], ties: Literal["average", "min"]) -> tuple[Floats, Floats]:
    """Return Spearman's rho and Kendall's tau-b between level and score by metric; 0 if undefined.

    Equal values get the mean of their ranks (`average`) or the lowest rank (`min`, equation 1). A loop over scipy's two
    functions returns the same results but takes forty times as long.
    """
    all_levels = np.repeat([float(node.level) for node in walk], [len(node.scores) for node in walk])
    all_scores = np.concatenate([node.scores for node in walk])
    spearman, kendall = np.zeros(all_scores.shape[1]), np.zeros(all_scores.shape[1])
    scored = np.isfinite(all_scores)
    for pattern in np.unique(scored, axis=1).T:  # correlate metrics that scored the same images together
        metrics = np.flatnonzero((scored == pattern[:, None]).all(axis=0))
        if not pattern.any():
            continue
        levels, scores = all_levels[pattern], all_scores[pattern][:, metrics]
        x = scipy.stats.rankdata(levels, method=ties)
        y = scipy.stats.rankdata(scores, method=ties, axis=0)
        x, y = x - x.mean(), y - y.mean(axis=0)
        spearman[metrics] = _divide_or_zero(x @ y, np.sqrt((x @ x) * (y * y).sum(axis=0)))
        x = np.sign(levels[:, None] - levels[None, :])
        y = np.sign(scores[:, None] - scores[None, :])
        kendall[metrics] = _divide_or_zero(
            np.einsum("ij,ijm->m", x, y), np.sqrt((x * x).sum() * (y * y).sum(axis=(0, 1)))
        )
    return spearman, kendall


def _divide_or_zero(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def compute_kolmogorov_smirnov(first: Floats, second: Floats) -> Floats:
    """Return the two-sample statistic for each column of (n, metrics) and (m, metrics).

    Values that are nan are ignored; the statistic is nan if either sample has no other values.
    """
    points = np.concatenate([first, second])
    distributions = []
    for sample in (first, second):
        below = (sample[:, None] <= points[None, :]).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = below / np.isfinite(sample).sum(axis=0)
        distributions.append(np.where(np.isfinite(points), shares, math.nan))
    return np.asarray(np.fmax.reduce(np.abs(distributions[0] - distributions[1]), axis=0))


def _compute_mean_scores(node: ErrorNode) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nansum(node.scores, axis=0) / np.isfinite(node.scores).sum(axis=0))


def _compare_nodes(nodes: Sequence[ErrorNode]) -> tuple[Floats, Floats]:
    """Return separation and delta by metric, averaged over pairs of nodes from different levels; 0 if there are none.

    A pair counts for a metric only if the metric scored all images of both nodes.
    """
    shape = (-1, nodes[0].scores.shape[1])
    pairs = [(first, second) for first, second in combinations(nodes, 2) if first.level < second.level]
    complete = [np.isfinite(np.concatenate([first.scores, second.scores])).all(axis=0) for first, second in pairs]
    counted = np.reshape(complete, shape).astype(bool)

    def average_or_zero(values: Sequence[Floats]) -> Floats:
        total = np.where(counted, np.reshape(values, shape), 0.0).sum(axis=0)
        return _divide_or_zero(total, counted.sum(axis=0).astype(np.float64))

    separations = [compute_kolmogorov_smirnov(first.scores, second.scores) for first, second in pairs]
    return average_or_zero(separations), average_or_zero(
        [_compute_mean_scores(first) - _compute_mean_scores(second) for first, second in pairs]
    )
