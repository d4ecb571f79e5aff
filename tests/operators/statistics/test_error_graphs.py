"""T2IScoreScore's meta-metrics are correct on hand-made graphs, and equal scipy's results for single walks."""

import math
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from plumbline.operators.statistics.error_graphs import (
    ErrorNode,
    compute_kolmogorov_smirnov,
    iterate_walks,
    score_graph,
    score_graphs,
)


def make_node(level: int, *scores: float) -> ErrorNode:
    return ErrorNode(level, np.array(scores, float)[:, None])


LADDER_NODES = [make_node(0, 0.9, 0.8), make_node(1, 0.6, 0.5), make_node(2, 0.2, 0.1)]


@pytest.mark.parametrize("convention", ["published", "paper", "current"])
def test_a_metric_that_falls_with_errors_has_perfect_order_and_separation(convention: str) -> None:
    found = score_graph(LADDER_NODES, convention)  # type: ignore[arg-type]
    assert found.separation == pytest.approx([1.0])
    assert found.spearman[0] < -0.9 and found.kendall[0] < -0.8
    assert found.delta == pytest.approx([0.35 if convention != "current" else (0.3 + 0.7 + 0.4) / 3])


def test_published_walks_start_with_every_ordered_pair_of_roots() -> None:
    roots = [make_node(0, 0.9), make_node(0, 0.7)]
    others = [make_node(1, 0.5), make_node(1, 0.6), make_node(2, 0.1)]
    assert len(list(iterate_walks([*roots, *others], root_pairs=True))) == 4 * 2 * 1
    assert len(list(iterate_walks([*roots, *others], root_pairs=False))) == 2 * 2 * 1


def test_the_published_numbers_equal_scipys_for_each_walk() -> None:
    random = np.random.default_rng(1)
    nodes = [
        ErrorNode(level, np.round(random.random((count, 1)), 1)) for level, count in [(0, 2), (1, 3), (1, 2), (2, 4)]
    ]
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


def rank_by_equation_1(values: list[float]) -> list[int]:
    """Return the rank of each value as in equation 1 of the T2IScoreScore paper: the number of smaller values."""
    return [sum(other < value for other in values) for value in values]


@pytest.mark.parametrize("seed", range(20))
def test_the_papers_rank_of_a_value_is_the_number_of_values_below_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [
        ErrorNode(int(level), np.round(random.random((int(images), 1)), 1))
        for level, images in zip([0, 1, 1, 2, 4], random.integers(1, 7, 5), strict=True)
    ]
    rho = []
    for walk in product(nodes[:1], nodes[1:3], nodes[3:4], nodes[4:]):
        errors = [float(one.level) for one in walk for _ in one.scores]
        scores = [float(score) for one in walk for score in one.scores[:, 0]]
        rho.append(np.corrcoef(rank_by_equation_1(errors), rank_by_equation_1(scores))[0, 1])
    random.shuffle(nodes)  # type: ignore[arg-type]
    assert score_graph(sorted(nodes, key=lambda one: one.level), "paper").spearman[0] == pytest.approx(np.mean(rho))


def test_images_without_a_score_are_left_out_and_a_constant_metric_has_no_order() -> None:
    gaps = [make_node(0, 0.9, math.nan), make_node(1, 0.1, 0.2)]
    assert score_graph(gaps, "published").spearman[0] == pytest.approx(
        score_graph([ErrorNode(0, np.array([[0.9]])), make_node(1, 0.1, 0.2)], "published").spearman[0]
    )
    flat = score_graph([make_node(0, 0.5), make_node(1, 0.5)], "published")
    assert (flat.spearman[0], flat.kendall[0], flat.separation[0], flat.delta[0]) == (0, 0, 0, 0)


def test_a_graph_without_errors_counts_as_0() -> None:
    alone = score_graph([make_node(0, 0.5, 0.7)], "published")
    assert (alone.spearman[0], alone.separation[0], alone.delta[0]) == (0, 0, 0)


def test_an_image_without_a_row_of_scores_counts_as_unscored() -> None:
    nodes = pd.DataFrame({"graph_id": "g", "image_id": list("abc"), "node": ["", "x", "x"], "level": [0, 1, 1]})
    scores = pd.DataFrame({"m": [0.9, 0.1]}, index=["a", "b"])
    found = score_graphs(nodes, scores, "paper").iloc[0]
    assert (found["graph_id"], found["metric"], found["separation"]) == ("g", "m", 1.0)


def test_the_kolmogorov_smirnov_statistic_equals_scipys_with_missing_scores() -> None:
    random = np.random.default_rng(2)
    first, second = np.round(random.random((9, 4)), 1), np.round(random.random((5, 4)), 1)
    first[2, 1] = math.nan
    found = compute_kolmogorov_smirnov(first, second)
    for column in range(4):
        clean = first[:, column][np.isfinite(first[:, column])]
        assert found[column] == pytest.approx(stats.ks_2samp(clean, second[:, column]).statistic)


def test_in_the_current_convention_a_missing_score_only_removes_the_pairs_with_its_node() -> None:
    nodes = [make_node(0, 0.9, math.nan), make_node(1, 0.5), make_node(1, 0.4), make_node(2, 0.1)]
    found = score_graph(nodes, "current")
    assert found.delta == pytest.approx([(0.4 + 0.3) / 2])
    assert found.separation == pytest.approx([1.0])
    assert math.isnan(score_graph([make_node(0, math.nan), make_node(1, math.nan)], "current").separation[0])
    assert score_graph([make_node(0, 0.9, math.nan), make_node(1, 0.5)], "current").separation == pytest.approx([0.0])


def test_the_current_convention_weights_walks_by_scored_images_and_leaves_out_single_nodes() -> None:
    nodes = [make_node(0, 0.9, 0.8), make_node(1, 0.1, 0.2, 0.3), make_node(1, 0.95, *[math.nan] * 9)]
    walks = [([0, 0, 1, 1, 1], [0.9, 0.8, 0.1, 0.2, 0.3]), ([0, 0, 1], [0.9, 0.8, 0.95])]
    rho = [stats.spearmanr(*walk).statistic for walk in walks]
    assert score_graph(nodes, "current").spearman == pytest.approx([np.average(rho, weights=[5, 3])])
    lonely = [make_node(0, math.nan), make_node(1, 0.3), make_node(1, 0.2, 0.1)]
    assert score_graph(lonely, "current").spearman == pytest.approx([0.0])
    assert math.isnan(score_graph([make_node(1, 0.3), make_node(2, 0.2)], "current").spearman[0])


def test_the_current_convention_agrees_with_scipy_on_every_pair_and_walk() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        nodes = [
            ErrorNode(
                level, np.where(random.random((count, 1)) < 0.15, math.nan, np.round(random.random((count, 1)), 1))
            )
            for level, count in [(0, 2), (1, 2), (1, 3), (2, 2), (4, 1)]
        ]
        found = score_graph(nodes, "current")
        pairs = [(a.scores[:, 0], b.scores[:, 0]) for a, b in combinations(nodes, 2) if a.level < b.level]
        whole = [(a, b) for a, b in pairs if not np.isnan(np.concatenate([a, b])).any()]
        assert found.delta[0] == pytest.approx(np.mean([a.mean() - b.mean() for a, b in whole]) if whole else 0)
        separations = [stats.ks_2samp(a, b).statistic for a, b in whole]
        assert found.separation[0] == pytest.approx(np.mean(separations) if whole else 0)
