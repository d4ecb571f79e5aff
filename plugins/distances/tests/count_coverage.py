"""Prints how often intervals of simulated distances contain the true distance: the table in the plugin's README.md."""

import sys
from functools import partial
from itertools import product

import numpy as np
import scipy.linalg

from plugins.distances.tests.test_intervals import Draw, draw_embeddings, estimate_fid, make_gaussian, simulate
from plumbline.plugins.distances.mmd import estimate_mmd

REPEATS = 100
LINE = "{:<5} {:>8} {:>6} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}"
NAMES = ("", "features", "images", "variances", "values", "true", "released", "estimate", "holds")


def estimate_fid_between(draws: tuple[Draw, Draw], n: int, random: np.random.Generator) -> tuple[float, float, float]:
    first, second = (draw(random, n) for draw in draws)
    return estimate_fid(first, second)


def print_fid_coverage(width: int, per_feature: int, decay: float, skewed: bool, apart: float, repeats: int) -> None:
    """Print the coverage for features from two distributions.

    One distribution has variances of 1 / rank**decay. The larger `apart` is, the more the other one differs from it in
    its mean and covariance.
    """
    random = np.random.default_rng(width + per_feature)
    root = np.diag((1 + np.arange(width)) ** (-decay / 2))
    turn, _ = np.linalg.qr(random.standard_normal((width, width)))
    other, mean = (np.eye(width) + 0.3 * apart * turn) @ root, 0.3 * apart * (np.arange(width) < 4)
    cross = scipy.linalg.sqrtm(other @ other.T @ root @ root.T).real
    truth = float(mean @ mean + np.trace(other @ other.T + root @ root.T - 2 * cross))
    draws = make_gaussian(other, mean, skewed), make_gaussian(root, np.zeros(width), skewed)
    found = simulate(partial(estimate_fid_between, draws, per_feature * width, random), truth, repeats)
    kinds = ("1 / rank" if decay else "equal", "skewed" if skewed else "normal")
    numbers = (f"{truth:.3f}", f"{found.plain_mean:.3f}", f"{found.mean:.3f}", f"{found.coverage:.0%}")
    print(LINE.format("fid", width, per_feature * width, *kinds, *numbers), flush=True)


def estimate_embeddings(shift: float, n: int, random: np.random.Generator) -> tuple[float, float, float]:
    found = estimate_mmd(draw_embeddings(random, n, shift, 1), draw_embeddings(random, n, 0, 1))
    return found.value, found.unbiased, found.effects.standard_error


def print_cmmd_coverage(n: int, shift: float) -> None:
    """Print the coverage for two sets of embeddings with 16 dimensions and unit length."""
    random = np.random.default_rng(n)
    many = estimate_mmd(draw_embeddings(random, 8000, shift, 1), draw_embeddings(random, 8000, 0, 1))
    found = simulate(partial(estimate_embeddings, shift, n, random), many.unbiased, 2 * REPEATS)
    numbers = (f"{many.unbiased:.3f}", f"{found.plain_mean:.3f}", f"{found.mean:.3f}", f"{found.coverage:.0%}")
    print(LINE.format("cmmd", 16, n, "equal", "unit", *numbers), flush=True)


def print_wide_fid_coverage() -> None:
    """Print the FID of two sets of 10,000 images from the same skewed distribution of 2048 features."""
    random, width = np.random.default_rng(0), 2048
    draw = make_gaussian(np.diag((1 + np.arange(width)) ** -0.5), np.zeros(width), skewed=True)
    released, estimate, error = estimate_fid(draw(random, 10_000), draw(random, 10_000))
    print(
        f"fid, 2048 features, 10000 images, true distance 0: released code {released:.4f}, "
        f"estimate {estimate:.4f} +- {error:.4f}"
    )


def main() -> None:
    if sys.argv[1:] == ["wide"]:
        print_wide_fid_coverage()
        return
    print(LINE.format(*NAMES))
    for n, shift in product((20, 100, 400), (0.0, 0.3, 1.0)):
        print_cmmd_coverage(n, shift)
    for width, per_feature, apart in product((16, 64), (2, 3, 10), (0.0, 1.0)):
        print_fid_coverage(width, per_feature, decay=1, skewed=width == 16, apart=apart, repeats=REPEATS)
    for per_feature in (1, 3):
        print_fid_coverage(256, per_feature, decay=0, skewed=False, apart=1, repeats=20)


if __name__ == "__main__":
    main()
