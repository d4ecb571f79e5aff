"""Finds a benchmark's images among the images of a training set, even if they were resized or encoded again."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from plumbline.plugins.benchmark_builder.leaks import KINDS, Kind, Match, Matches

SIDE, LOWEST, CELLS = 64, 8, 16
"""Per side: pixels after scaling, hashed frequencies, and cells with a mean colour."""
MAX_BITS = 14
"""Images whose hashes differ in more bits, of 63, are different; the colours of the others are compared."""
MIN_CORRELATION = 0.95
MIN_DEVIATION = 4.0
"""Standard deviation of the cells' brightness (of 255) below which an image cannot be compared."""
PAIRS_AT_ONCE, IMAGES_AT_ONCE = 2**20, 1024
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Fingerprint(NamedTuple):
    """A compact description of an image, for comparisons."""

    bits: int
    """The lowest frequencies of the brightness, each 1 if above their median."""
    colours: NDArray[np.uint8]
    """Mean colours of the cells, flat: CELLS x CELLS x 3 values."""


class TrainingImage(NamedTuple):
    """An image of a training set."""

    file: str
    row: str
    """Its row or sample."""
    name: str
    """Its id, or an empty text."""
    fingerprint: Fingerprint | None
    """None if it is too plain to be compared."""


def fingerprint(image: Image.Image) -> Fingerprint | None:
    """Return the fingerprint of an RGB image, or None if it is too plain to be compared.

    The bits are the DCT hash of Zauner ("Implementation and benchmarking of perceptual image hash functions", 2010,
    section 3.2.1) without the mean brightness.
    """
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3), dtype=np.float32)
    width = SIDE // CELLS
    colours = small.reshape(CELLS, width, CELLS, width, 3).mean(axis=(1, 3))
    if (colours @ GREY).std() < MIN_DEVIATION:  # a fine pattern has cells of one colour, too
        return None
    frequencies = dctn(small @ GREY)[:LOWEST, :LOWEST].ravel()[1:]
    bits = int.from_bytes(np.packbits(frequencies > np.median(frequencies)).tobytes())
    return Fingerprint(bits, colours.round().astype(np.uint8).ravel())


class ImageFinder:
    """Compares training images with all images of a benchmark at once; its memory depends only on the benchmark.

    Colours are compared only for pairs with similar hashes.
    """

    def __init__(self, pictures: Sequence[tuple[Kind, Fingerprint]], min_correlation: float = MIN_CORRELATION):
        self.min_correlation = min_correlation
        self._kinds = [KINDS.index(kind) for kind, _ in pictures]
        self._bits, self._colours = _stack([fingerprint for _, fingerprint in pictures])

    def find(self, images: Iterable[TrainingImage]) -> Matches:
        """Return the matches of the benchmark's images among these training images."""
        matches, remaining = Matches(), iter(images)
        size = max(1, min(IMAGES_AT_ONCE, PAIRS_AT_ONCE // max(1, len(self._kinds))))
        while block := list(islice(remaining, size)):
            matches.scanned += len(block)
            self._find([image for image in block if image.fingerprint is not None], matches)
        return matches

    def _find(self, images: Sequence[TrainingImage], matches: Matches) -> None:
        bits, colours = _stack([image.fingerprint for image in images if image.fingerprint is not None])
        theirs, own = np.nonzero(np.bitwise_count(bits[:, None] ^ self._bits) <= MAX_BITS)
        for first in range(0, len(own), IMAGES_AT_ONCE):
            rows, places = (found[first : first + IMAGES_AT_ONCE] for found in (theirs, own))
            correlations = _correlate(colours[rows], self._colours[places])
            for pair in np.nonzero(correlations >= self.min_correlation)[0].tolist():
                image, place = images[rows[pair]], int(places[pair])
                match = Match(self._kinds[place], 1 - float(correlations[pair]), image.file, image.row, image.name)
                matches.add(place, [match], 1)


def _stack(fingerprints: Sequence[Fingerprint]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the bits, and the colours with a row for each fingerprint."""
    colours = np.array([fingerprint.colours for fingerprint in fingerprints], dtype=np.uint8)
    bits = np.array([fingerprint.bits for fingerprint in fingerprints], dtype=np.uint64)
    return bits, colours.reshape(-1, CELLS * CELLS * 3)


def _correlate(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return Pearson's correlation of each pair of rows, at most 1."""
    centred = [colours - colours.mean(axis=1, keepdims=True, dtype=np.float32) for colours in (first, second)]
    scaled = [colours / np.linalg.norm(colours, axis=1, keepdims=True) for colours in centred]
    correlations: NDArray[np.float32] = np.minimum(np.einsum("ij,ij->i", *scaled), 1)
    return correlations
