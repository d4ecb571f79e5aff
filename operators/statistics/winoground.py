"""Winoground's and EqBen's three scores of image-text pairings (Thrush et al. 2022, section 4.1)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PairingScores(NamedTuple):
    """By sample, whether the metric got it right; strictly, so that a tie is wrong."""

    text: NDArray[np.bool_]
    """For both images the right caption scores higher."""
    image: NDArray[np.bool_]
    """For both captions the right image scores higher."""
    group: NDArray[np.bool_]
    """Both."""


def pairing_scores(scores: Floats) -> PairingScores:
    """`scores` (samples, 2 captions, 2 images), caption i fitting image i; raises ValueError where one is not
    finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError("a sample lacks one of its four scores; leave it out")
    text = (scores[:, 0, 0] > scores[:, 1, 0]) & (scores[:, 1, 1] > scores[:, 0, 1])
    image = (scores[:, 0, 0] > scores[:, 0, 1]) & (scores[:, 1, 1] > scores[:, 1, 0])
    return PairingScores(text, image, text & image)
