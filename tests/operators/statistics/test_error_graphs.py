"""T2IScoreScore's meta-metrics: on graphs made by hand, and against scipy's functions one walk at a time."""

import math
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from operators.statistics.error_graphs import Node, kolmogorov_smirnov, score_graph, score_graphs


def node(level: int, *scores: float) -> Node:
    return Node(level, np.array(scores, float)[:, None])


LADDER = [node(0, 0.9, 0.8), node(1, 0.6, 0.5), node(2, 0.2, 0.1)]


@pytest.mark.parametrize("convention", ["published", "paper", "current"])
def test_a_metric_that_falls_with_errors_orders_and_separates_fully(convention: str) -> None:
    found = score_graph(LADDER, convention)  # type: ignore[arg-type]
    assert found.separation == pytest.approx([1.0])
    assert found.spearman[0] < -0.9 and found.kendall[0] < -0.8
    assert found.delta == pytest.approx([0.35 if convention != "current" else (0.3 + 0.7 + 0.4) / 3])


def test_the_published_walks_are_headed_by_every_ordered_pair_of_roots() -> None:
    roots = [node(0, 0.9), node(0, 0.7)]
    others = [node(1, 0.5), node(1, 0.6), node(2, 0.1)]
    assert score_graph([*roots, *others], "published").n_walks == 4 * 2 * 1
    assert score_graph([*roots, *others], "paper").n_walks == 2 * 2 * 1


def test_the_published_numbers_are_scipys_one_walk_at_a_time() -> None:
    random = np.random.default_rng(1)
    nodes = [Node(level, np.round(random.random((count, 1)), 1)) for level, count in [(0, 2), (1, 3), (1, 2), (2, 4)]]
    rho, weights, separations = [], [], []
    for head, first, second in product(nodes[:1], nodes[1:3], nodes[3:]):
        parts = [np.concatenate([head.scores, head.scores])[:, 0], first.scores[:, 0], second.scores[:, 0]]
        errors = np.repeat([0, 1, 2], [len(part) for part in parts])
        rho.append(stats.spearmanr(errors, np.concatenate(parts)).statistic)
        weights.append(len(errors))
        separations.append(np.mean([stats.ks_2samp(a, b).statistic for a, b in combinations(parts, 2)]))
    found = score_graph(nodes, "published")
    assert found.spearman[0] == pytest.approx(np.average(rho, weights=weights))
    assert found.separation[0] == pytest.approx(np.average(separations, weights=weights))


def test_images_without_a_score_are_left_out_and_a_constant_metric_has_no_order() -> None:
    gaps = [node(0, 0.9, math.nan), node(1, 0.1, 0.2)]
    assert score_graph(gaps, "published").spearman[0] == pytest.approx(
        score_graph([Node(0, np.array([[0.9]])), node(1, 0.1, 0.2)], "published").spearman[0]
    )
    flat = score_graph([node(0, 0.5), node(1, 0.5)], "published")
    assert (flat.spearman[0], flat.kendall[0], flat.separation[0], flat.delta[0]) == (0, 0, 0, 0)


def test_a_graph_without_errors_counts_as_nothing() -> None:
    alone = score_graph([node(0, 0.5, 0.7)], "published")
    assert (alone.spearman[0], alone.separation[0], alone.delta[0]) == (0, 0, 0)


def test_an_image_that_was_never_scored_is_as_one_without_a_score() -> None:
    nodes = pd.DataFrame({"graph_id": "g", "image_id": list("abc"), "node": ["", "x", "x"], "level": [0, 1, 1]})
    scores = pd.DataFrame({"m": [0.9, 0.1]}, index=["a", "b"])
    found = score_graphs(nodes, scores, "paper").iloc[0]
    assert (found["graph_id"], found["metric"], found["separation"]) == ("g", "m", 1.0)


def test_the_statistic_is_scipys_for_every_metric_with_gaps() -> None:
    random = np.random.default_rng(2)
    first, second = np.round(random.random((9, 4)), 1), np.round(random.random((5, 4)), 1)
    first[2, 1] = math.nan
    found = kolmogorov_smirnov(first, second)
    for column in range(4):
        clean = first[:, column][np.isfinite(first[:, column])]
        assert found[column] == pytest.approx(stats.ks_2samp(clean, second[:, column]).statistic)
