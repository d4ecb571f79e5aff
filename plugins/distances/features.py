"""Features of a set of images, in batches that are read one after another."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]


class FeatureBatch(NamedTuple):
    """Features of a batch of images from a set, and the images' prompts."""

    prompts: Hashes
    """Hash of each image's prompt id (n,); images of the same prompt are not independent."""
    features: Floats
    """Features (n, width)."""


class ClusterSums:
    """Sums of the images' effects on a distance, by prompt; the effects of images from both sets are added up."""

    def __init__(self) -> None:
        self._prompts: list[Hashes] = []
        self._effects: list[NDArray[np.float64]] = []

    def add(self, prompts: Hashes, effects: NDArray[np.float64]) -> None:
        self._prompts.append(prompts)
        self._effects.append(effects)

    def sum_by_prompt(self) -> "PromptEffects":
        """Return the sum of the effects for each prompt."""
        prompts, places = np.unique(np.concatenate(self._prompts), return_inverse=True)
        sums = np.zeros(len(prompts))
        np.add.at(sums, places, np.concatenate(self._effects))
        return PromptEffects(prompts, sums)


class PromptEffects(NamedTuple):
    """Effect of each prompt's images on a distance."""

    prompts: Hashes
    """Hashes of the prompts, sorted."""
    effects: NDArray[np.float64]

    @property
    def standard_error(self) -> float:
        """Standard error of the distance. Prompts are independent, but images of the same prompt are not."""
        n = len(self.effects)
        return float(np.sqrt(np.square(self.effects).sum() * n / max(n - 1, 1)))

    def subtract(self, other: "PromptEffects") -> "PromptEffects":
        """Return the effects on the difference between two distances; a prompt that is in both counts only once."""
        sums = ClusterSums()
        sums.add(self.prompts, self.effects)
        sums.add(other.prompts, -other.effects)
        return sums.sum_by_prompt()
