"""Maps between two score scales agree with values worked out by hand, and the simplest adequate map is chosen."""

import math

import numpy as np
import pytest

from plumbline.operators.statistics.poisson_bootstrap import draw_prompts, hash_ids
from plumbline.plugins.gates.score_maps import (
    LINE_FIT_FUNCTIONS,
    MapKind,
    choose_line,
    choose_map,
    compute_margin,
    fit_curve,
    fit_equating_line,
    fit_line,
)

PROMPT_HASHES = hash_ids([f"p{number}" for number in range(300)])
RANDOM_GENERATOR = np.random.default_rng(0)
OLD_SCORES = RANDOM_GENERATOR.uniform(0, 1, 300)
NOISE = RANDOM_GENERATOR.normal(0, 0.02, 300)


def test_fitted_lines_agree_with_values_computed_by_hand() -> None:
    """The old scores differ from their mean by -1, 0 and 1, and the new scores from their mean by -2, 1 and 1.

    The slope is therefore 3/2 for least squares, and the square root of 6/2 for equating.
    """
    old, new = np.array([1.0, 2, 3]), np.array([0.0, 3, 3])
    assert fit_line(old, new) == pytest.approx((-1, 1.5))
    assert fit_equating_line(old, new) == pytest.approx((2 - 2 * math.sqrt(3), math.sqrt(3)))
    assert fit_equating_line(old, -new) == pytest.approx((-2 + 2 * math.sqrt(3), -math.sqrt(3)))


def test_a_curve_pools_falling_values_and_is_constant_beyond_its_ends() -> None:
    """Images with the old scores 1, 2 and 3 have the mean new scores 3, 3 and 1, which do not rise.

    The new scores of these four images are therefore pooled to (2 + 4 + 3 + 1) / 4 = 2.5.
    """
    curve = fit_curve(np.array([0.0, 1, 1, 2, 3]), np.array([0.0, 2, 4, 3, 1]))
    assert curve(np.array([-1, 0, 0.5, 1, 2, 9])) == pytest.approx([0, 0, 1.25, 2.5, 2.5, 2.5])
    assert fit_curve(np.array([0.0, 1, 2]), np.array([4.0, 5, 0]))(np.array([0.0, 2])) == pytest.approx([4.5, 0])


@pytest.mark.parametrize(
    ("kind", "new"),
    [
        ("unchanged", OLD_SCORES + NOISE),
        ("unchanged", OLD_SCORES),
        ("linear", 0.3 + 2 * OLD_SCORES + NOISE),
        ("monotone", OLD_SCORES**4 + NOISE / 2),
        ("unchanged", NOISE[::-1] + OLD_SCORES),
    ],
)
def test_the_simplest_map_that_predicts_other_prompts_is_chosen(kind: MapKind, new: np.ndarray) -> None:
    assert choose_map(OLD_SCORES, new, PROMPT_HASHES).kind == kind


def test_equally_noisy_versions_are_joined_by_equating_instead_of_least_squares() -> None:
    """The five generators differ in true quality, and the scores of both versions are about equally noisy."""
    groups = np.repeat(np.arange(5, dtype=np.int32), 60)
    true = np.linspace(0.1, 0.9, 5)[groups]
    old, new = (true + RANDOM_GENERATOR.normal(0, 0.3, 300) for _ in range(2))
    line = choose_line(old, 10 * new, groups, tuple(LINE_FIT_FUNCTIONS))
    assert line.kind == "equated" and fit_line(old, 10 * new).slope < 6 < 8 < line.line.slope
    assert line.explained > 0.8
    assert choose_line(old, new, np.zeros(300, np.int32), ["linear"]).without == []


def test_a_margin_uses_students_t_and_is_nan_for_a_single_miss() -> None:
    assert compute_margin([0.1, -0.1]) == pytest.approx(4.303 * 0.1, rel=1e-3) and math.isnan(compute_margin([0.1]))


def test_a_larger_draw_of_prompts_includes_the_smaller_draw() -> None:
    few, more = draw_prompts(PROMPT_HASHES[:200], 20, 1), draw_prompts(PROMPT_HASHES, 60, 1)
    assert few.sum() == 20 and more.sum() == 60 and draw_prompts(PROMPT_HASHES, None, 1).all()
    rank = {int(prompt) for prompt in PROMPT_HASHES[more]}
    assert len({int(prompt) for prompt in PROMPT_HASHES[:200][few]} & rank) >= 15
    assert (draw_prompts(PROMPT_HASHES, 60, 2) != more).any()
