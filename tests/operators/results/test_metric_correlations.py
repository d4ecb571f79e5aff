"""Two metrics are correlated per generator, over the images that both have scored."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from plumbline.operators.base import rows, schemas
from plumbline.operators.results.metric_correlations import compute_spearman_interval, correlate_metrics
from tests.operators.tallied import wrap_scores

PROMPT_IDS = [f"p{number}" for number in range(40)]


def make_scores(
    metric: str, generator: str, scores: dict[str, float | None], copies: int = 1
) -> list[dict[str, object]]:
    return [
        {"image_id": f"{prompt}-{copy}", "prompt_id": prompt, "generator": generator, "metric": metric, "score": score}
        for prompt, score in scores.items()
        for copy in range(copies)
    ]


def draw_scores(seed: int) -> dict[str, float | None]:
    return dict(zip(PROMPT_IDS, np.random.default_rng(seed).random(len(PROMPT_IDS)).tolist(), strict=True))


def make_table(*parts: list[dict[str, object]]) -> pa.Table:
    return rows.table([row for part in parts for row in part], schemas.SCORES)


def test_two_metrics_are_correlated_over_the_images_that_both_scored() -> None:
    first, second, third = draw_scores(1), draw_scores(2) | {"p0": None}, draw_scores(3)
    del second["p1"]
    runs = wrap_scores(
        make_table(
            make_scores("a", "x", first),
            make_scores("b", "x", second),
            make_scores("a", "y", third),
            make_scores("b", "y", third),
        )
    )
    x, y = correlate_metrics(runs, ["a", "b"])
    both = PROMPT_IDS[2:]
    expected = stats.spearmanr([first[prompt] for prompt in both], [second[prompt] for prompt in both]).statistic
    assert (x.metric, x.other, x.kind, x.generator, x.n) == ("a", "b", "metric", "x", 38)
    assert x.rho == pytest.approx(expected) and x.low < x.rho < x.high
    assert (y.generator, y.rho) == ("y", pytest.approx(1)) and math.isnan(y.low), (
        "equal orders give no estimate of the variance"
    )


def test_the_interval_of_a_rank_correlation_has_its_stated_coverage() -> None:
    """The test draws 1,000 samples of 40 normal pairs with a true rank correlation of 0.5."""
    random, truth = np.random.default_rng(0), 0.5
    pearson = 2 * math.sin(math.pi * truth / 6)
    covered = 0
    for _ in range(1000):
        pair = random.multivariate_normal([0, 0], [[1, pearson], [pearson, 1]], 40)
        interval = compute_spearman_interval(float(stats.spearmanr(pair).statistic), 40)
        covered += interval.low <= truth <= interval.high
    assert 930 <= covered <= 970
    assert math.isnan(compute_spearman_interval(0.5, 3).low) and math.isnan(compute_spearman_interval(math.nan, 40).low)
