"""T2IScoreScore's meta-metrics: does a metric order and separate images by how many errors they have?

A semantic error graph holds images of one prompt on nodes; a node is a set of errors, its level their number. A walk
takes one node from every level that is present. Source: Saxon et al. 2024, Who Evaluates the Evaluations?, section 4.
The released numbers depart from the paper's formulas, and the code has changed since, so that there are three
conventions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import Convention

Floats = NDArray[np.float64]
Ties = Literal["average", "min"]
"""The rank of equal values: the mean of their ranks, as scipy's Spearman, or the lowest of them, which equation 1
states: a value's rank is the number of values below it."""


class GraphScores(NamedTuple):
    """One graph's meta-metrics, each of shape (metrics,). A metric that falls with errors has a negative
    correlation.
    """

    spearman: Floats
    kendall: Floats
    separation: Floats
    delta: Floats


@dataclass(frozen=True, slots=True)
class ErrorNode:
    """The images of one set of errors."""

    level: int
    scores: Floats
    """(images, metrics); nan where there is none."""


def score_graphs(nodes: pd.DataFrame, scores: pd.DataFrame, convention: Convention) -> pd.DataFrame:
    """Every graph and metric: spearman, kendall, separation (0 to 1) and delta (in score units).

    `nodes` has graph_id, image_id, node and level, `scores` a row per image_id and a column per metric. Images
    without a row in `scores` count as not scored.
    """
    graphs, ids = pd.factorize(nodes["graph_id"])
    values = scores.reindex(nodes["image_id"]).to_numpy(np.float64)
    names, levels = nodes["node"].to_numpy(), nodes["level"].to_numpy()
    measured = [
        score_graph(_nodes(names[rows], levels[rows], values[rows]), convention)
        for rows in np.split(np.argsort(graphs, kind="stable"), np.cumsum(np.bincount(graphs))[:-1])
    ]
    columns = {name: np.concatenate([getattr(graph, name) for graph in measured]) for name in GraphScores._fields}
    metrics = np.tile(scores.columns.to_numpy(), len(ids))
    return pd.DataFrame({"metric": metrics, **columns, "graph_id": np.repeat(ids, len(scores.columns))})


def _nodes(names: NDArray[Any], levels: NDArray[Any], values: Floats) -> list[ErrorNode]:
    """A graph's nodes by level, in the order in which they stand."""
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    nodes = [ErrorNode(int(levels[of_node[0]]), values[of_node]) for of_node in rows.values()]
    return sorted(nodes, key=lambda node: node.level)


def score_graph(nodes: Sequence[ErrorNode], convention: Convention) -> GraphScores:
    """Return the meta-metrics of one graph; a graph with a single level has no order, and gets 0.

    By `current` a graph without any score of a metric is nan, and so is the order of a graph without a root.
    """
    if convention == "current":
        return _current(nodes)
    walks = list(walks_of(nodes, twice=convention == "published"))
    weights = np.array([_images(walk) if convention == "published" else 1 for walk in walks], np.float64)[:, None]
    orders = [_order(walk, ties="min" if convention == "paper" else "average") for walk in walks]
    return GraphScores(
        spearman=_mean([order[0] for order in orders], weights),
        kendall=_mean([order[1] for order in orders], weights),
        separation=_mean([_separation(walk, adjacent=convention == "paper") for walk in walks], weights),
        delta=_mean([_delta(walk) for walk in walks], weights),
    )


def _current(nodes: Sequence[ErrorNode]) -> GraphScores:
    """Return the meta-metrics of the maintained code.

    A walk weighs by its scored images, at least two, and pairs of nodes are taken regardless of walks.
    """
    n_metrics = nodes[0].scores.shape[1]
    rooted = any(node.level == 0 for node in nodes)
    walks = list(walks_of(nodes, twice=False)) if rooted else []
    scored = np.reshape([_scored(walk) for walk in walks], (-1, n_metrics))
    weights = np.where(scored > 1, scored, 0.0)
    orders = np.reshape([_order(walk, ties="average") for walk in walks], (-1, 2, n_metrics))
    separation, delta = np.where(_scored(nodes) > 0, _between_nodes(nodes), math.nan)
    return GraphScores(_mean(orders[:, 0], weights), _mean(orders[:, 1], weights), separation, delta)


def walks_of(nodes: Sequence[ErrorNode], *, twice: bool) -> Iterator[tuple[ErrorNode, ...]]:
    """One node from every level, as a full product; `twice` heads a walk with every ordered pair of roots."""
    levels = [[node for node in nodes if node.level == level] for level in sorted({node.level for node in nodes})]
    roots = [node for node in nodes if node.level == 0]
    if twice and roots:
        heads = [ErrorNode(0, np.concatenate([first.scores, second.scores])) for first, second in product(roots, roots)]
        levels = [heads, *levels[1:]]
    yield from product(*levels)


def _images(walk: Sequence[ErrorNode]) -> int:
    return sum(len(node.scores) for node in walk)


def _scored(nodes: Sequence[ErrorNode]) -> Floats:
    """How many images of these nodes have a score, by metric."""
    return np.asarray(np.isfinite(np.concatenate([node.scores for node in nodes])).sum(axis=0), np.float64)


def _mean(values: Sequence[Floats] | Floats, weights: Floats) -> Floats:
    """The mean of (walks, metrics), weighed by walk or by walk and metric; nan where nothing has a weight."""
    weighed = (np.asarray(values) * weights).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(weighed / weights.sum(axis=0))


def _order(walk: Sequence[ErrorNode], ties: Ties) -> tuple[Floats, Floats]:
    """Return Spearman's rho and Kendall's tau-b between level and score by metric; 0 if undefined.

    A loop over scipy's two functions returns the same and takes forty times as long.
    """
    levels = np.repeat([float(node.level) for node in walk], [len(node.scores) for node in walk])
    scores = np.concatenate([node.scores for node in walk])
    spearman, kendall = np.zeros(scores.shape[1]), np.zeros(scores.shape[1])
    scored = np.isfinite(scores)
    for pattern in np.unique(scored, axis=1).T:
        metrics = np.flatnonzero((scored == pattern[:, None]).all(axis=0))
        if pattern.any():
            spearman[metrics] = _spearman(levels[pattern], scores[pattern][:, metrics], ties)
            kendall[metrics] = _kendall(levels[pattern], scores[pattern][:, metrics])
    return spearman, kendall


def _spearman(levels: Floats, scores: Floats, ties: Ties) -> Floats:
    x = scipy.stats.rankdata(levels, method=ties)
    y = scipy.stats.rankdata(scores, method=ties, axis=0)
    x, y = x - x.mean(), y - y.mean(axis=0)
    return _ratio(x @ y, np.sqrt((x @ x) * (y * y).sum(axis=0)))


def _kendall(levels: Floats, scores: Floats) -> Floats:
    x = np.sign(levels[:, None] - levels[None, :])
    y = np.sign(scores[:, None] - scores[None, :])
    return _ratio(np.einsum("ij,ijm->m", x, y), np.sqrt((x * x).sum() * (y * y).sum(axis=(0, 1))))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _separation(walk: Sequence[ErrorNode], *, adjacent: bool) -> Floats:
    """The mean two-sample Kolmogorov-Smirnov statistic of the walk's levels, all pairs of them or those that follow."""
    pairs = list(pairwise(walk) if adjacent else combinations(walk, 2))
    if not pairs:
        return np.zeros(walk[0].scores.shape[1])
    return np.asarray(np.mean([kolmogorov_smirnov(first.scores, second.scores) for first, second in pairs], axis=0))


def kolmogorov_smirnov(first: Floats, second: Floats) -> Floats:
    """The two-sample statistic by column of (n, metrics) and (m, metrics), nan left out; nan where a side has
    nothing.
    """
    everything = np.concatenate([first, second])
    return np.asarray(np.fmax.reduce(np.abs(_shares(first, everything) - _shares(second, everything)), axis=0))


def _shares(sample: Floats, points: Floats) -> Floats:
    """By point and metric, the share of the sample that is not above it."""
    below = (sample[:, None] <= points[None, :]).sum(axis=0)
    sizes = np.isfinite(sample).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(points), below / sizes, math.nan)


def _delta(walk: Sequence[ErrorNode]) -> Floats:
    """The mean fall of the mean score from one level to the next."""
    means = [_means(node) for node in walk]
    if len(means) < 2:
        return np.zeros_like(means[0])
    return np.asarray(np.mean([above - below for above, below in pairwise(means)], axis=0))


def _means(node: ErrorNode) -> Floats:
    sizes = np.isfinite(node.scores).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nansum(node.scores, axis=0) / sizes)


def _between_nodes(nodes: Sequence[ErrorNode]) -> tuple[Floats, Floats]:
    """Separation and delta as plain means over the pairs of nodes of different levels of which every image has a score;
    0 where there is no such pair.
    """
    pairs = [(first, second) for first, second in combinations(nodes, 2) if first.level < second.level]
    whole = [_whole(first) & _whole(second) for first, second in pairs]
    separations = [kolmogorov_smirnov(first.scores, second.scores) for first, second in pairs]
    deltas = [_means(first) - _means(second) for first, second in pairs]
    return _mean_where(separations, whole, nodes[0]), _mean_where(deltas, whole, nodes[0])


def _whole(node: ErrorNode) -> NDArray[np.bool_]:
    """By metric, whether every image has a score."""
    return np.asarray(np.isfinite(node.scores).all(axis=0))


def _mean_where(values: Sequence[Floats], counted: Sequence[NDArray[np.bool_]], node: ErrorNode) -> Floats:
    shape = (-1, node.scores.shape[1])
    kept = np.reshape(counted, shape).astype(bool)
    total = np.where(kept, np.reshape(values, shape), 0.0).sum(axis=0)
    return _ratio(total, kept.sum(axis=0).astype(np.float64))
