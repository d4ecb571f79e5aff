"""How many pairs the signed-rank test wants: at least, and to show a difference that is what it seems."""

import math

from scipy import stats

CHANCE = 0.8
"""With which the pairs that are asked for show a difference."""


def fewest_pairs(tests: int, level: float) -> int:
    """The least number of pairs of which any outcome is significant at a level after Holm's correction for so many
    tests: n pairs that all differ the same way have the two-sided p-value 2^(1 - n), and there is none below.
    """
    return math.floor(math.log2(tests / level)) + 2


def pairs_needed(effect: float, tests: int, level: float, chance: float = CHANCE) -> int:
    """About how many pairs that differ show, with this chance and as the first of so many tests, a difference of this
    rank-biserial correlation (in [-1, 1], not 0).

    Noether 1987, Sample size determination for some common nonparametric tests: (z_alpha + z_beta)^2 / (3 (p - 1/2)^2),
    where p, the chance that the sum of two differences is above 0, is (1 + effect) / 2.
    """
    reach = float(stats.norm.ppf(1 - level / (2 * tests)) + stats.norm.ppf(chance))
    return max(fewest_pairs(tests, level), math.ceil(4 * reach**2 / (3 * effect**2)))
