"""Compares numbers up to rounding: numbers such as 1 - 2/3 and 1/3 count as equal."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRECISION_BITS = 30  # numbers are compared to 2**-30 of their typical size, about 1e-9
MIN_EXPONENT = -1000  # minimum exponent of a step, so that steps and half steps are normal numbers


def choose_step(*values: Floats) -> float:
    """Return the step for rounding these values: a power of two, about 1e-9 of the median absolute value above 0.

    The median prevents one enormous value, such as -1e9 for a failure, from hiding the differences between all other
    values. Powers of two suit fractions with small denominators: a k/n that is not a multiple of half a step is at
    least 1 / (2n) steps away from a boundary, which is much more than floating-point error. The step is at least
    2**MIN_EXPONENT, even if all values are 0, nan or infinite.
    """
    sizes = np.abs(np.concatenate([array.ravel() for array in values]))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(sizes):
        return 2.0**MIN_EXPONENT
    return 2.0 ** max(math.frexp(float(np.median(sizes)))[1] - PRECISION_BITS, MIN_EXPONENT)


def round_to_step(values: Floats, step: float) -> Floats:
    """Return values rounded to multiples of a step, a power of two; nan, infinite and huge values are unchanged."""
    near = np.abs(values) < step * 2.0**52
    return np.where(near, np.rint(np.where(near, values, 0.0) / step) * step, values)


def merge_equal(values: Floats) -> Floats:
    """Replace values that agree in their first nine digits with the smallest of them.

    Tiny scores do not become 0: BLEU's 1e-78 and 1e-155 stay different.
    """
    fractions, exponents = np.frexp(values)
    rounded, inverse = np.unique(np.ldexp(np.rint(fractions * 2**PRECISION_BITS), exponents), return_inverse=True)
    least = np.full(len(rounded), math.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(least, inverse, values)
    return np.asarray(least[inverse])


def compute_exact_means(values: Floats, groups: NDArray[np.intp], count: int) -> Floats:
    """Return the mean of each of `count` groups, using exact sums that do not depend on the order of values (n,).

    `groups` (n,) contains the group of each value. Values that are nan or infinite are ignored; the mean of a group
    without finite values is nan.
    """
    known = np.isfinite(values)
    groups, values = groups[known], values[known]
    counts = np.bincount(groups, minlength=count)
    ends = np.cumsum(counts)
    ordered = values[np.argsort(groups, kind="stable")].tolist()
    means = np.full(count, math.nan)
    for group in np.flatnonzero(counts).tolist():
        size, end = int(counts[group]), int(ends[group])
        means[group] = math.fsum(ordered[end - size : end]) / size
    return means


def compute_order_independent_sums(values: Floats, groups: NDArray[np.intp] | NDArray[np.int32], count: int) -> Floats:
    """Return the sum of each group; values (n,) are added in ascending order, so their original order is irrelevant.

    This is faster than exact sums, and accurate enough for the few scores of a prompt.
    """
    if np.bincount(groups, minlength=1).max() > 2:  # a + b is b + a
        order = np.lexsort((values, groups))
        groups, values = groups[order], values[order]
    return np.bincount(groups, weights=values, minlength=count).astype(np.float64)
