"""Z-scores and ranks are independent of a metric's scale, and order the images of each prompt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.rewards.values import (
    Floats,
    StdKind,
    compute_rank_advantages,
    compute_z_scores,
    measure_noise,
)

PROMPT_NUMBERS = np.array([0, 0, 0, 1, 1, 2], np.int32)
NAN = float("nan")
NUMBERS = st.integers(-1000, 1000).map(lambda number: number / 100)


@st.composite
def draw_scored_images(draw: st.DrawFn, metrics: int = 1) -> tuple[np.ndarray, list[Floats]]:
    """Draw each image's prompt index, and the images' scores by each metric; a missing score is nan."""
    n = draw(st.integers(2, 24))
    prompts = np.sort(np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), np.int32))
    each = st.lists(st.one_of(NUMBERS, st.just(NAN)), min_size=n, max_size=n)
    return prompts, [np.array(draw(each)) for _ in range(metrics)]


def test_the_noise_is_the_pooled_standard_deviation_within_a_prompt() -> None:
    values = np.array([1.0, 2.0, 3.0, 5.0, 7.0, 100.0])
    assert measure_noise(values, PROMPT_NUMBERS) == pytest.approx(np.sqrt((1 + 0 + 1 + 1 + 1) / (6 - 3)))
    assert measure_noise(np.array([1.0, NAN, NAN, 2.0, NAN, NAN]), PROMPT_NUMBERS) == 0
    assert measure_noise(np.full(6, 0.1), PROMPT_NUMBERS) == 0


@pytest.mark.parametrize("std, spread", [("population", np.sqrt(2 / 3)), ("sample", 1.0)])
def test_z_scores_use_the_chosen_standard_deviation(std: StdKind, spread: float) -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 4.0, 9.0])
    noise = measure_noise(values, PROMPT_NUMBERS)
    z = compute_z_scores(values, PROMPT_NUMBERS, noise, std, epsilon=0.5)
    assert z[:3] == pytest.approx(np.array([-1, 0, 1]) / (spread + 0.5 * noise))
    assert list(z[3:]) == [0, 0, 0], "identical images, and a prompt's only image"


def test_ranks_ascend_from_the_worst_to_the_best_and_ties_share_a_rank() -> None:
    ranks = compute_rank_advantages(np.array([3.0, 1.0, 1.0, NAN, 2.0, 5.0]), PROMPT_NUMBERS, noise=1.0)
    assert list(ranks[:3]) == [1.0, -0.5, -0.5] and np.isnan(ranks[3]) and list(ranks[4:]) == [0, 0]


@given(draw_scored_images(), st.floats(1e-3, 1e3))
def test_z_scores_and_ranks_do_not_depend_on_the_rewards_scale(
    given: tuple[np.ndarray, list[Floats]], scale: float
) -> None:
    prompts, (values,) = given
    for made in (compute_z_scores, None):
        before, after = (
            compute_z_scores(v, prompts, measure_noise(v, prompts), "population", 1e-4)
            if made
            else compute_rank_advantages(v, prompts, measure_noise(v, prompts))
            for v in (values, values * scale)
        )
        np.testing.assert_allclose(after, before, atol=1e-6)
