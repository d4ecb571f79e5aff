"""A combined reward follows its expression, for one image or many; an image without all scores has no reward."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.combination import Reward, RewardConfig, Unit, UnitScale, compute_scales
from plumbline.operators.rewards.values import Floats, measure_noise
from tests.operators.rewards.test_values import NAN, NUMBERS, PROMPT_NUMBERS, draw_scored_images

WEIGHTS = {"up": 1.0, "down": 0.5}
SCALES = {"up": UnitScale(1.0, 2.0), "down": UnitScale(10.0, 4.0)}


@pytest.mark.parametrize(
    ("options", "reward"),
    [
        ({}, 3 - 0.5 * 20),
        ({"unit": "z_score"}, (3 - 1) / 2 - 0.5 * (20 - 10) / 4),
        ({"unit": "z_score", "join": "min"}, -0.5 * (20 - 10) / 4),
        ({"unit": "z_score", "clip_parts": (-2.0, 0.25)}, 0.25 - 0.5 * 2),
        ({"unit": "z_score", "clip": (-0.125, 1.0)}, -0.125),
        ({"join": "product", "clip_parts": (0.0, 2.0)}, 0.0),
    ],
    ids=str,
)
def test_a_reward_follows_its_expression(options: dict[str, object], reward: float) -> None:
    """The scores are 3 for `up` and 20 for `down`, for which lower is better; parts are ordered by name."""
    combination = RewardConfig(weights=WEIGHTS, **options)
    made = Reward(combination, frozenset({"down"}), SCALES if combination.unit != "score" else {})
    assert made.parts == ("down", "up") and made([20.0, 3.0]) == reward


def test_the_weights_of_a_product_are_exponents() -> None:
    product = RewardConfig(weights={"a": 1, "b": 2}, join="product", clip_parts=(0, 10))
    assert Reward(product, frozenset(), {})([3.0, 0.5]) == 0.75


def compute_rewards(prompts: np.ndarray, scores: list[Floats], unit: Unit = "noise") -> Floats:
    of = {f"m{number}": values for number, values in enumerate(scores)}
    return Reward(
        RewardConfig(weights=dict.fromkeys(of, 1.0), unit=unit), frozenset(), compute_scales(of, prompts, unit, "it")
    ).compute_all(of)


@given(draw_scored_images(2), st.sampled_from(["z_score", "noise"]), st.integers(-8, 8), NUMBERS)
def test_a_metrics_scale_and_offset_do_not_change_rewards_in_units_of_a_baseline(
    given: tuple[np.ndarray, list[Floats]], unit: Unit, power: int, offset: float
) -> None:
    prompts, (first, second) = given
    try:
        before = compute_rewards(prompts, [first, second], unit)
    except ConfigError:
        assume(False)
    np.testing.assert_allclose(compute_rewards(prompts, [first * 2.0**power + offset, second], unit), before, atol=1e-6)


@given(draw_scored_images(2), st.sampled_from(["z_score", "noise"]), st.randoms())
def test_scales_do_not_depend_on_the_order_of_the_baselines_images(
    given: tuple[np.ndarray, list[Floats]], unit: Unit, random: np.random.Generator
) -> None:
    """The prompts may also be numbered differently, because a service and an export read rows in different orders."""
    prompts, scores = given
    order = list(range(len(prompts)))
    random.shuffle(order)
    renamed = np.array([(5 - code) * 3 for code in prompts[order]], np.int32)
    try:
        before = compute_scales({"a": scores[0], "b": scores[1]}, prompts, unit, "it")
    except ConfigError:
        assume(False)
    assert compute_scales({"a": scores[0][order], "b": scores[1][order]}, renamed, unit, "it") == before


@given(draw_scored_images(2))
def test_an_image_without_a_score_has_no_reward_and_does_not_affect_others(
    given: tuple[np.ndarray, list[Floats]],
) -> None:
    prompts, scores = given
    whole = ~np.isnan(scores[0]) & ~np.isnan(scores[1])
    try:
        rewards = compute_rewards(prompts, scores)
    except ConfigError:
        assume(False)
    assert (np.isnan(rewards) == ~whole).all()
    np.testing.assert_array_equal(compute_rewards(prompts[whole], [values[whole] for values in scores]), rewards[whole])


def test_scales_are_the_mean_and_the_deviation_or_noise_of_the_baseline() -> None:
    values = np.array([1.0, 2.0, NAN, 4.0, 5.0, 60.0])
    known = values[~np.isnan(values)]
    (z_score,) = compute_scales({"a": values}, PROMPT_NUMBERS, "z_score", "it").values()
    (noise,) = compute_scales({"a": values}, PROMPT_NUMBERS, "noise", "it").values()
    assert z_score == pytest.approx((known.mean(), known.std()))
    assert noise == pytest.approx((known.mean(), measure_noise(values, PROMPT_NUMBERS)))
    with pytest.raises(
        ConfigError,
        match=r"expected two images of a prompt with different scores by a in it, found none; .* or unit: z_score",
    ):
        compute_scales({"a": np.array([1.0, NAN, NAN, 2.0, NAN, 3.0])}, PROMPT_NUMBERS, "noise", "it")
    with pytest.raises(ConfigError, match="expected two images with different scores by b in it, found none"):
        compute_scales({"a": values, "b": np.full(6, 0.1)}, PROMPT_NUMBERS, "z_score", "it")


def test_the_reward_of_a_single_metric_is_its_score_negated_if_lower_is_better() -> None:
    alone = RewardConfig(weights={"a": 1.0})
    assert alone.single_metric == "a" and RewardConfig(weights={"a": 2.0}).single_metric is None
    values = np.array([0.1, 0.2, NAN, 1e-17])
    np.testing.assert_array_equal(Reward(alone, frozenset(), {}).compute_all({"a": values}), values)
    np.testing.assert_array_equal(Reward(alone, frozenset({"a"}), {}).compute_all({"a": values}), -values)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": {}}, "reward: expected at least one metric, got none"),
        ({"weights": {"a": 0.0, "b": 0.0}}, "reward.weights.a: expected a weight above 0 and at most 1e.06, got 0"),
        ({"weights": {"a": math.inf}}, "reward.weights.a: expected a weight above 0 and at most 1e.06, got inf"),
        ({"weights": {"a": -1.0}}, "reward.weights.a: .* need no negative weight"),
        ({"clip": (1.0, 0.0)}, r"reward.clip: expected \[LOW, HIGH\] with LOW below HIGH, got \[1.0, 0.0\]"),
        ({"join": "product"}, "reward.join=product: expected clip_parts"),
        ({"weights": {"a": 400.0}, "join": "product", "clip_parts": (0.0, 10.0)}, "expected no product above 1e.300"),
        ({"join": "product", "clip_parts": (-1.0, 1.0)}, "the product of two negative values would be positive"),
    ],
    ids=str,
)
def test_an_invalid_expression_is_an_error_of_one_line(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        RewardConfig(**{"weights": WEIGHTS, **options})
    assert "\n" not in str(refused.value)
