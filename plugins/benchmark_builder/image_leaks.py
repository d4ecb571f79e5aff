"""Finds a benchmark's images in a training set, even if they were resized or re-encoded."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from plumbline.plugins.benchmark_builder.leaks import MATCH_KINDS, LeakMatch, LeakMatches, MatchKind

SCALED_SIDE = 64
"""Width and height in pixels to which an image is scaled before its fingerprint is computed."""
HASH_SIDE = 8
"""Number of lowest frequencies in each direction that the hash includes."""
GRID_SIDE = 16
"""Number of cells, in each direction, of the grid whose mean colours are compared."""
MAX_DIFFERING_BITS = 14
"""Maximum number of differing hash bits, of 63, at which the colours of two images are compared."""
MIN_COLOUR_CORRELATION = 0.95
MIN_BRIGHTNESS_DEVIATION = 4.0
"""Standard deviation of the cells' brightness (0 to 255) below which an image is too plain to be compared."""
PAIRS_AT_ONCE, IMAGES_AT_ONCE = 2**20, 1024
GREY_WEIGHTS = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Fingerprint(NamedTuple):
    """A compact description of an image, used to compare it with others."""

    bits: int
    """One bit per low frequency of the brightness; a bit is 1 if the frequency's coefficient is above the median."""
    colours: NDArray[np.uint8]
    """Mean colours of the grid cells, flattened to GRID_SIDE x GRID_SIDE x 3 values."""


class TrainingImage(NamedTuple):
    """An image of a training set."""

    file: str
    row: str
    """The row or sample that contains the image."""
    name: str
    """The image's id, or an empty string if it has none."""
    fingerprint: Fingerprint | None
    """Fingerprint of the image, or None if the image is too plain to be compared."""


def compute_fingerprint(image: Image.Image) -> Fingerprint | None:
    """Return the fingerprint of an RGB image, or None if it is too plain to be compared.

    The bits are the DCT hash of Zauner ("Implementation and benchmarking of perceptual image hash functions", 2010,
    section 3.2.1) without the mean brightness.
    """
    small = np.asarray(
        image.resize((SCALED_SIDE, SCALED_SIDE), Image.Resampling.BILINEAR, reducing_gap=3), dtype=np.float32
    )
    width = SCALED_SIDE // GRID_SIDE
    colours = small.reshape(GRID_SIDE, width, GRID_SIDE, width, 3).mean(axis=(1, 3))
    # the cells of a fine pattern also have nearly the same mean colour
    if (colours @ GREY_WEIGHTS).std() < MIN_BRIGHTNESS_DEVIATION:
        return None
    frequencies = dctn(small @ GREY_WEIGHTS)[:HASH_SIDE, :HASH_SIDE].ravel()[1:]
    bits = int.from_bytes(np.packbits(frequencies > np.median(frequencies)).tobytes())
    return Fingerprint(bits, colours.round().astype(np.uint8).ravel())


class ImageFinder:
    """Compares training images with all images of a benchmark at once.

    Memory use depends only on the benchmark. Colours are compared only for pairs of images with similar hashes.
    """

    def __init__(
        self, pictures: Sequence[tuple[MatchKind, Fingerprint]], min_correlation: float = MIN_COLOUR_CORRELATION
    ):
        self.min_correlation = min_correlation
        self._kinds = [MATCH_KINDS.index(kind) for kind, _ in pictures]
        self._bits, self._colours = _stack_fingerprints([fingerprint for _, fingerprint in pictures])

    def find(self, images: Iterable[TrainingImage]) -> LeakMatches:
        """Return all matches between the benchmark's images and these training images."""
        matches, remaining = LeakMatches(), iter(images)
        size = max(1, min(IMAGES_AT_ONCE, PAIRS_AT_ONCE // max(1, len(self._kinds))))
        while block := list(islice(remaining, size)):
            matches.scanned += len(block)
            self._find_in_batch([image for image in block if image.fingerprint is not None], matches)
        return matches

    def _find_in_batch(self, images: Sequence[TrainingImage], matches: LeakMatches) -> None:
        bits, colours = _stack_fingerprints([image.fingerprint for image in images if image.fingerprint is not None])
        theirs, own = np.nonzero(np.bitwise_count(bits[:, None] ^ self._bits) <= MAX_DIFFERING_BITS)
        for first in range(0, len(own), IMAGES_AT_ONCE):
            rows, places = (found[first : first + IMAGES_AT_ONCE] for found in (theirs, own))
            correlations = _correlate_rows(colours[rows], self._colours[places])
            for pair in np.nonzero(correlations >= self.min_correlation)[0].tolist():
                image, place = images[rows[pair]], int(places[pair])
                match = LeakMatch(self._kinds[place], 1 - float(correlations[pair]), image.file, image.row, image.name)
                matches.add(place, [match], 1)


def _stack_fingerprints(fingerprints: Sequence[Fingerprint]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the bits (n,) and the colours (n, GRID_SIDE * GRID_SIDE * 3) of n fingerprints."""
    colours = np.array([fingerprint.colours for fingerprint in fingerprints], dtype=np.uint8)
    bits = np.array([fingerprint.bits for fingerprint in fingerprints], dtype=np.uint64)
    return bits, colours.reshape(-1, GRID_SIDE * GRID_SIDE * 3)


def _correlate_rows(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the Pearson correlation of each pair of rows, capped at 1."""
    centred = [colours - colours.mean(axis=1, keepdims=True, dtype=np.float32) for colours in (first, second)]
    scaled = [colours / np.linalg.norm(colours, axis=1, keepdims=True) for colours in centred]
    correlations: NDArray[np.float32] = np.minimum(np.einsum("ij,ij->i", *scaled), 1)
    return correlations
