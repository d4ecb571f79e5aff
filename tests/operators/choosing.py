"""Simulates judges that choose between two images, given the generators' strengths and the judge's order bias."""

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Judge(NamedTuple):
    """A judge of two images: its log-odds of preferring the first are the difference in quality plus `bias`.

    A generator's quality on a prompt is its strength plus normal noise, which all its pairs on the prompt share.
    """

    strengths: tuple[float, ...]
    bias: float = 0.0
    """Advantage of the image that is shown first, in units of quality."""
    ties: float = 0.0
    """Probability of the reply "tie"."""
    spread: float = 1.0
    """Standard deviation of a generator's quality between prompts."""
    replies: bool = True
    """True if the judge replies in words, so that p_first is 1, 0 or 0.5; False if p_first is its probability."""

    @property
    def pairs(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Index of each pair's first generator, and index of each pair's second generator."""
        first, second = np.array([*combinations(range(len(self.strengths)), 2)]).T
        return first, second

    def choose(self, random: np.random.Generator, prompts: int) -> tuple[Floats, Floats]:
        """Return p_first, of shape (prompts, pairs), for both orders of each pair: as listed in `pairs`, and reversed.

        The number p_first is the judge's preference, from 0 to 1, for the image that is shown first.
        """
        first, second = self.pairs
        quality = np.array(self.strengths) + self.spread * random.normal(size=(prompts, len(self.strengths)))
        lead = quality[:, first] - quality[:, second]
        return self._reply(random, expit(lead + self.bias)), self._reply(random, expit(-lead + self.bias))

    def _reply(self, random: np.random.Generator, p_first: Floats) -> Floats:
        if not self.replies:
            return p_first
        is_tie = random.random(p_first.shape) < self.ties
        return np.where(is_tie, 0.5, (random.random(p_first.shape) < p_first).astype(np.float64))

    def draw_outcomes(self, random: np.random.Generator, prompts: int) -> Floats:
        """Return the share that the first generator of each pair wins, averaged over both orders: (prompts, pairs)."""
        one, other = self.choose(random, prompts)
        return np.asarray((one + 1 - other) / 2)

    def compare(self, random: np.random.Generator, prompts: int, metric: str = "pairwise") -> pd.DataFrame:
        """Return a table of the judge's comparisons, with every pair of generators in both orders."""
        both = self.choose(random, prompts)
        first, second = self.pairs
        prompt, pair = (part.ravel() for part in np.indices(both[0].shape))
        tables = []
        for p_first, (one, other) in zip(both, ((first, second), (second, first)), strict=True):
            columns: dict[str, Any] = {"prompt_id": [f"p{number}" for number in prompt], "metric": metric}
            for place, codes in (("first", one), ("second", other)):
                columns[f"{place}_generator"] = [f"g{code}" for code in codes[pair]]
                columns[f"{place}_image_id"] = [f"g{c}-p{p}" for c, p in zip(codes[pair], prompt, strict=True)]
            tables.append(pd.DataFrame({**columns, "p_first": p_first.ravel()}))
        return pd.concat(tables, ignore_index=True)
