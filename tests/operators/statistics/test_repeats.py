"""The noise due to the seed equals hand-computed values, and variances are recovered from simulated scores."""

import math

import numpy as np
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.findings import describe_seed_noise
from plumbline.operators.report.page_tables import make_seed_table
from plumbline.operators.statistics.repeats import RepeatVariances, estimate_repeat_variances, pool_repeats
from tests.operators.tallied import summarise


def test_variances_of_two_prompts_equal_those_worked_out_by_hand() -> None:
    """The scores of the two prompts are (1, 3) and (5, 9).

    The mean square within prompts is (2 + 8) / 2 = 5, and between prompts ((2 - 4.5)^2 + (7 - 4.5)^2) * 2 = 25, so
    the variance between prompts is (25 - 5) / 2 = 10.
    """
    found = estimate_repeat_variances(np.array([0, 0, 4, 4]), np.array([1.0, 3.0, 5.0, 9.0]))
    assert found == pytest.approx(RepeatVariances(images=2.0, between=10.0, within=5.0))
    assert found is not None and found.share == pytest.approx(2.5 / 12.5)
    assert found.width_with_twice_the_images == pytest.approx(math.sqrt((10 + 1.25) / 12.5))


def test_variances_of_groups_of_unequal_size_equal_those_worked_out_by_hand() -> None:
    """The scores of the two prompts are (0, 2, 4) and (7).

    The mean square within prompts is 8 / 2 = 4, and between prompts 3 * 1.25^2 + 3.75^2 = 18.75. The effective group
    size is (4 - 10 / 4) / 1 = 1.5.
    """
    found = estimate_repeat_variances(np.array([0, 0, 0, 1]), np.array([0.0, 2.0, 4.0, 7.0]))
    assert found == pytest.approx(RepeatVariances(images=2.0, between=14.75 / 1.5, within=4.0))


def test_there_is_no_estimate_without_repeats_or_for_a_single_prompt() -> None:
    assert estimate_repeat_variances(np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0])) is None
    assert estimate_repeat_variances(np.array([3, 3]), np.array([1.0, 2.0])) is None
    assert estimate_repeat_variances(np.array([], int), np.array([])) is None
    assert describe_seed_noise({"m": RepeatVariances(2.0, 0.0, 0.0)}) == []


def test_simulated_variances_are_recovered() -> None:
    rng = np.random.default_rng(3)
    prompts = np.repeat(np.arange(4000), rng.integers(1, 6, 4000))
    scores = rng.normal(0, 0.3, 4000)[prompts] + rng.normal(0, 0.2, len(prompts))
    found = estimate_repeat_variances(prompts, scores)
    assert found is not None and found.between == pytest.approx(0.09, rel=0.06)
    assert found.within == pytest.approx(0.04, rel=0.05)


def test_the_report_predicts_the_effect_of_more_images_and_more_prompts() -> None:
    by_metric = {
        "m": pool_repeats([RepeatVariances(4.0, 0.02, 0.12), RepeatVariances(4.0, 0.0, 0.04)]),
        "k": RepeatVariances(4.0, 0.09, 0.04),
    }
    assert by_metric["m"] == pytest.approx(RepeatVariances(4.0, 0.01, 0.08))
    (said,) = describe_seed_noise(by_metric)
    assert str(said) == (
        "The seed causes 67% of the variance of a mean by m, and 10% by k. By m, twice as many images per prompt (now "
        "4) would narrow the interval by 18%, and twice as many prompts by 29%."
    )
    assert make_seed_table(by_metric).rows[0] == ("m", "4", "0.100", "0.283", "67%", "−18%", "−29%")


def test_more_seeds_with_equal_scores_do_not_narrow_an_interval() -> None:
    """Ten images of a prompt with the same score count like a single image: intervals are clustered by prompt."""
    once = [{"generator": "g", "metric": "m", "prompt_id": f"p{at}", "score": at / 20} for at in range(20)]
    one, ten = (summarise(rows.table(once * times, schemas.SCORES), {}).to_pylist()[0] for times in (1, 10))
    assert (ten["n"], ten["low"], ten["high"]) == (200, pytest.approx(one["low"]), pytest.approx(one["high"]))
    assert ten["sem"] < one["sem"] / 3, "the error that treats images as independent is too small"
