"""Computing statistics of metrics is fast compared with brute force, and takes a limited amount of memory."""

import os
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from plumbline.operators.metaeval.graphs import measure_graphs
from plumbline.operators.statistics.ordering import compute_correlation_p_value
from plumbline.operators.statistics.ties import calibrate_ties
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.releases.readers import read_release
from tests.benchmarks.size import choose_size, expect, start_fresh_process
from tests.benchmarks.test_scale import read_peak_memory

BRUTE_FORCE_ROWS = choose_size(3_000, 100)
MIN_SPEEDUP_BY_ROWS = choose_size({BRUTE_FORCE_ROWS: 3, 9_600: 10, 100_000: 40}, {BRUTE_FORCE_ROWS: 0, 200: 0})
"""Numbers of rows, with the minimum speed-up of tie calibration over listing all pairs."""
MAX_MEGABYTES = 1_000


def make_ratings(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean ratings of `rows` images by three raters, and a metric's noisy scores that follow the ratings."""
    random = np.random.default_rng(0)
    truth = random.normal(size=rows)
    human = np.mean(
        [np.clip(np.round(3 + truth + random.normal(scale=0.7, size=rows)), 1, 5) for _ in range(3)], axis=0
    )
    return human, truth + random.normal(size=rows)


def make_labels(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return human labels (0 or 1, so very many pairs are tied) for `rows` images, and a metric's scores."""
    human, metric = make_ratings(rows)
    return (human > 3).astype(float), metric


def calibrate_by_brute_force(human: np.ndarray, metric: np.ndarray) -> float:
    """Return the best accuracy, found by listing and sorting every pair once, as other packages do with numpy."""
    i, j = np.triu_indices(len(human), 1)
    difference = np.abs(metric[i] - metric[j])
    sign = np.sign(human[i] - human[j])
    concordant = sign * np.sign(metric[i] - metric[j]) > 0
    order = np.argsort(difference)
    gains = np.cumsum(np.where(sign == 0, 1, np.where(concordant, -1, 0))[order])
    last = np.append(difference[order][1:] != difference[order][:-1], True)
    return float((concordant.sum() + max(gains[last].max(), 0)) / len(i))


def time_call(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in seconds, which hardly depends on other processes on the machine."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measure_peak_megabytes(make: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> float:
    """Return this process's peak memory in MB after the largest calibration.

    It is read from /proc, because ru_maxrss would include the memory of the parent process.
    """
    calibrate_ties(*make(max(MIN_SPEEDUP_BY_ROWS)))
    return read_peak_memory(os.getpid())


def test_tie_calibration_is_exact_and_faster_than_all_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    human, metric = make_ratings(BRUTE_FORCE_ROWS)
    assert calibrate_ties(human, metric).accuracy == pytest.approx(calibrate_by_brute_force(human, metric), abs=1e-12)
    of_pairs = time_call(lambda: calibrate_by_brute_force(human, metric))
    ratios = {}
    for rows in MIN_SPEEDUP_BY_ROWS:
        for name, make in (("three raters", make_ratings), ("two labels", make_labels)):
            taken = time_call(lambda make=make, rows=rows: calibrate_ties(*make(rows)))
            ratios[rows, name] = of_pairs * (rows / BRUTE_FORCE_ROWS) ** 2 / taken
    with capsys.disabled():
        print()
        for (rows, name), ratio in ratios.items():
            print(f"tie calibration, n = {rows}, {name}: {ratio:.0f} times as fast as comparing all pairs")
        with start_fresh_process() as fresh:
            peak = max(fresh.map(measure_peak_megabytes, (make_ratings, make_labels)))
        print(
            f"peak memory of a process that calibrates n = {max(MIN_SPEEDUP_BY_ROWS)}: {peak:.0f} MB "
            f"(target: below {MAX_MEGABYTES})"
        )
    expect(all(ratio > MIN_SPEEDUP_BY_ROWS[rows] for (rows, _), ratio in ratios.items()))
    expect(peak < MAX_MEGABYTES)


def measure_walks_one_by_one(nodes: pd.DataFrame, scores: pd.DataFrame, graph: str) -> None:
    """Compute the error graph's statistics as the released code does, calling scipy separately for each metric."""
    levels = nodes.loc[nodes["graph_id"] == graph]
    values = scores.loc[levels["image_id"]]
    for metric in scores:
        stats.spearmanr(levels["level"], values[metric])
        stats.kendalltau(levels["level"], values[metric])
        groups = [its[metric].to_numpy() for _, its in values.groupby(levels["level"].to_numpy())]
        for first, second in combinations(groups, 2):
            stats.ks_2samp(first, second)


@pytest.mark.skipif("REFERENCE_DATA" not in os.environ, reason="REFERENCE_DATA is not set")
def test_error_graphs_of_19_metrics_are_measured_faster_than_walk_by_walk(capsys: pytest.CaptureFixture[str]) -> None:
    folder = StorageConfig().locate(str(Path(os.environ["REFERENCE_DATA"]) / "ts2"))
    release = read_release("t2iscorescore", folder)
    measured = time_call(lambda: measure_graphs(release.graph_nodes, release.scores, "published"))
    nodes = release.graph_nodes.to_pandas()
    wide = release.scores.to_pandas().pivot(index="image_id", columns="metric", values="score")
    walks = {graph: _count_walks(its) for graph, its in nodes.groupby("graph_id")}
    few = list(walks)[:5]
    by_walk = sum(
        walks[graph] * time_call(lambda graph=graph: measure_walks_one_by_one(nodes, wide, graph)) for graph in few
    )
    estimate = by_walk / sum(walks[graph] for graph in few) * sum(walks.values())
    with capsys.disabled():
        print(f"\nT2IScoreScore, 165 graphs x 19 metrics: {measured:.2f} s (target: below 5)")
        print(
            f"one walk at a time with scipy: about {estimate:.0f} s, estimated from {len(few)} graphs: "
            f"{estimate / measured:.0f} times as long"
        )
    expect(estimate > 5 * measured)


def test_comparing_metric_pairs_is_faster_than_drawing_signs_for_each_pair(
    capsys: pytest.CaptureFixture[str],
) -> None:
    random = np.random.default_rng(0)
    truth, prompts = random.normal(size=1_200), [str(row // 4) for row in range(1_200)]
    metrics = truth + random.normal(size=(choose_size(12, 2), 1_200))
    pairs = list(combinations(metrics, 2))
    together = time_call(lambda: [compute_correlation_p_value(truth, a, b, prompts) for a, b in pairs])
    drawn = time_call(lambda: [np.random.default_rng(0).integers(2, size=(9_999, 300)) for _ in pairs])
    with capsys.disabled():
        print(
            f"\n{len(pairs)} comparisons of metrics on 300 prompts: {together:.2f} s; drawing signs alone {drawn:.2f} s"
        )
    expect(together < drawn)


def _count_walks(nodes: pd.DataFrame) -> int:
    """Count a graph's walks as the released code does: a walk has two roots and one node from each deeper level."""
    of_level = nodes.groupby("level")["node"].nunique()
    return int(of_level.drop(0, errors="ignore").prod() * of_level.get(0, 1) ** 2)
