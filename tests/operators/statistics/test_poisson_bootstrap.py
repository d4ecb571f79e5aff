"""A prompt's weights are Poisson-distributed and depend on its id alone."""

import math

import numpy as np

from plumbline.operators.statistics.poisson_bootstrap import (
    CUMULATIVE_PROBABILITIES,
    N_RESAMPLES,
    draw_poisson_weights,
    hash_ids,
)

MASK_64_BITS = 2**64 - 1


def compute_weight(prompt: int, resample: int) -> int:
    """Draw a number with the published SplitMix64; return how many of CUMULATIVE_PROBABILITIES it reaches."""
    mixed = (prompt + (resample + 1) * 0x9E3779B97F4A7C15) & MASK_64_BITS
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64_BITS
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64_BITS
    drawn = ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53
    return sum(float(step) <= drawn for step in CUMULATIVE_PROBABILITIES)


def test_weights_follow_their_definition_and_the_poisson_distribution() -> None:
    prompts = hash_ids([f"prompt-{number}" for number in range(200)])
    weights = draw_poisson_weights(prompts)
    assert weights.shape == (200, N_RESAMPLES)
    for row in (0, 63, 64, 199):
        assert weights[row].tolist() == [compute_weight(int(prompts[row]), resample) for resample in range(N_RESAMPLES)]
    for count in range(5):
        expected = math.exp(-1) / math.factorial(count)
        assert abs(np.mean(weights == count) - expected) < 4 * math.sqrt(expected / weights.size)
