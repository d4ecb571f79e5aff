"""Which pictures of a benchmark are among the images of a training set, encoded or resized anew."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from plumbline.plugins.benchmark_builder.leaks import KINDS, Kind, Match, Matches

SIDE, LOWEST, CELLS = 64, 8, 16
"""Pixels of the side that pictures are scaled to; the frequencies in each direction that are hashed; and the cells of
the side whose colours are compared."""
MOST_BITS = 14
"""Of 63, that differ between the hashes of pictures whose colours are compared."""
LEAST_CORRELATION = 0.95
PLAIN = 4.0
"""The standard deviation of the cells' brightness, of 255, below which a picture cannot be told from others."""
PAIRS_AT_ONCE, IMAGES_AT_ONCE = 2**20, 1024
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Fingerprint(NamedTuple):
    """What pictures are compared by."""

    bits: int
    """Which of the lowest frequencies of the brightness are above their median."""
    colours: NDArray[np.uint8]
    """The mean colour of each cell, flat: CELLS x CELLS x 3 values."""


class TrainingImage(NamedTuple):
    """An image of a training set."""

    file: str
    row: str
    """Its row or sample there."""
    name: str
    """Its own id; empty where it has none."""
    fingerprint: Fingerprint | None
    """None where it is too plain to be compared."""


def fingerprint(image: Image.Image) -> Fingerprint | None:
    """The fingerprint of an RGB picture, None where it is too plain to be told from others.

    The bits are the DCT hash of Zauner ("Implementation and benchmarking of perceptual image hash functions", 2010,
    section 3.2.1) without the mean brightness.
    """
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3), dtype=np.float32)
    width = SIDE // CELLS
    colours = small.reshape(CELLS, width, CELLS, width, 3).mean(axis=(1, 3))
    if (colours @ GREY).std() < PLAIN:  # also of a fine pattern, whose cells have one colour
        return None
    frequencies = dctn(small @ GREY)[:LOWEST, :LOWEST].ravel()[1:]
    bits = int.from_bytes(np.packbits(frequencies > np.median(frequencies)).tobytes())
    return Fingerprint(bits, colours.round().astype(np.uint8).ravel())


class PictureFinder:
    """Compares images with all pictures of a benchmark at once; what it holds grows with these pictures alone.

    The hash, at 64 bits a pair, chooses the pairs whose colours are compared.
    """

    def __init__(self, pictures: Sequence[tuple[Kind, Fingerprint]], least_correlation: float = LEAST_CORRELATION):
        self.least_correlation = least_correlation
        self._kinds = [KINDS.index(kind) for kind, _ in pictures]
        self._bits, self._colours = _stacked([own for _, own in pictures])

    def find(self, images: Iterable[TrainingImage]) -> Matches:
        """The pictures that stand among the images."""
        matches, each = Matches(), iter(images)
        size = max(1, min(IMAGES_AT_ONCE, PAIRS_AT_ONCE // max(1, len(self._kinds))))
        while block := list(islice(each, size)):
            matches.looked += len(block)
            self._find([image for image in block if image.fingerprint is not None], matches)
        return matches

    def _find(self, images: Sequence[TrainingImage], matches: Matches) -> None:
        bits, colours = _stacked([image.fingerprint for image in images if image.fingerprint is not None])
        theirs, own = np.nonzero(np.bitwise_count(bits[:, None] ^ self._bits) <= MOST_BITS)
        for first in range(0, len(own), IMAGES_AT_ONCE):
            rows, places = (found[first : first + IMAGES_AT_ONCE] for found in (theirs, own))
            alike = _correlation(colours[rows], self._colours[places])
            for pair in np.nonzero(alike >= self.least_correlation)[0].tolist():
                image, place = images[rows[pair]], int(places[pair])
                match = Match(self._kinds[place], 1 - float(alike[pair]), image.file, image.row, image.name)
                matches.add(place, [match], 1)


def _stacked(fingerprints: Sequence[Fingerprint]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """The bits, and the colours with a row for each."""
    colours = np.array([own.colours for own in fingerprints], dtype=np.uint8)
    return np.array([own.bits for own in fingerprints], dtype=np.uint64), colours.reshape(-1, CELLS * CELLS * 3)


def _correlation(some: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pearson's correlation of each pair of rows, at most 1."""
    centred = [colours - colours.mean(axis=1, keepdims=True, dtype=np.float32) for colours in (some, others)]
    scaled = [colours / np.linalg.norm(colours, axis=1, keepdims=True) for colours in centred]
    alike: NDArray[np.float32] = np.minimum(np.einsum("ij,ij->i", *scaled), 1)
    return alike
