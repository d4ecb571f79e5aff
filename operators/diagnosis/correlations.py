"""How far a metric goes with another over the same images, and with what prompts are like ("What makes a good metric?",
sec. 3.1 to 3.4).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import MIN_DIFFERING, UNDEFINED, Interval
from plumbline.operators.statistics.levels import CONFIDENCE_QUANTILE

Floats = NDArray[np.float64]


class Correlation(NamedTuple):
    """Spearman's rank correlation of one generator's scores."""

    metric: str
    other: str
    """Another metric, or a property of prompts."""
    kind: str
    """Of the other: metric or property."""
    generator: str
    rho: float
    """nan where one side is the same everywhere."""
    low: float
    high: float
    n: int
    """Images, of two metrics; prompts, of a property."""


class PromptNumbers(NamedTuple):
    """A number of every prompt, by the hashes of their ids, which ascend."""

    prompts: Hashes
    values: Floats

    def of(self, prompts: Hashes) -> Floats:
        """Those of some prompts; nan of one that has none."""
        if not len(self.prompts):
            return np.full(len(prompts), math.nan)
        places = np.minimum(np.searchsorted(self.prompts, prompts), len(self.prompts) - 1)
        return np.where(self.prompts[places] == prompts, self.values[places], math.nan)


def prompt_numbers(prompts: Hashes, values: Sequence[float]) -> PromptNumbers:
    """Numbers in any order; of a prompt that comes twice, the first."""
    unique, places = np.unique(prompts, return_index=True)
    return PromptNumbers(unique, np.asarray(values, np.float64)[places])


def between_metrics(scores: RunScores, metrics: Sequence[str]) -> Iterator[Correlation]:
    """Every two metrics, for each generator over the images that both scored."""
    for metric, other in combinations(metrics, 2):
        ours, theirs = scores.select_rows(metric).scored(), scores.select_rows(other).scored()
        for place, generator in enumerate(scores.generators):
            own, others = (columns.where(columns.generator == place) for columns in (ours, theirs))
            _, here, there = np.intersect1d(own.image, others.image, return_indices=True)
            prompts = len(np.unique(own.prompt[here]))
            yield _correlation(metric, other, "metric", generator, own.score[here], others.score[there], prompts)


def with_properties(scores: RunScores, properties: Mapping[str, Mapping[str, PromptNumbers]]) -> Iterator[Correlation]:
    """Every metric with its properties of prompts, for each generator; several images of a prompt are averaged."""
    for metric, of_metric in properties.items():
        columns = scores.select_rows(metric).scored()
        for place, generator in enumerate(scores.generators):
            means = prompt_means(columns.where(columns.generator == place))
            for name, known in of_metric.items():
                values = known.of(means.prompts)
                has = np.isfinite(values)
                yield _correlation(metric, name, "property", generator, means.values[has], values[has], int(has.sum()))


def prompt_means(columns: ScoreColumns) -> PromptNumbers:
    """The mean score of each prompt's images."""
    prompts, numbers = np.unique(columns.prompt, return_inverse=True)
    sums, counts = (np.bincount(numbers, weights, len(prompts)) for weights in (columns.score, None))
    return PromptNumbers(prompts, sums / np.maximum(counts, 1))


def rho_of_value_means(means: PromptNumbers, known: PromptNumbers) -> float:
    """The rank correlation of a property's values with the mean score at each: high where a weak trend is averaged
    over many prompts.
    """
    values = known.of(means.prompts)
    has = np.isfinite(values)
    each, numbers = np.unique(values[has], return_inverse=True)
    averages = np.bincount(numbers, means.values[has], len(each)) / np.maximum(np.bincount(numbers), 1)
    return STATISTICS["spearman"](each, averages)


def _correlation(
    metric: str, other: str, kind: str, generator: str, ours: Floats, theirs: Floats, prompts: int
) -> Correlation:
    rho = STATISTICS["spearman"](theirs, ours)
    interval = spearman_interval(rho, prompts) if _varies(ours) and _varies(theirs) else UNDEFINED
    return Correlation(metric, other, kind, generator, rho, *interval, len(ours))


def _varies(values: Floats) -> bool:
    """Return True if enough values differ from the commonest value for an interval to hold."""
    counts = np.unique(values, return_counts=True)[1]
    return len(values) - int(counts.max(initial=0)) >= MIN_DIFFERING


def spearman_interval(rho: float, n: int) -> Interval:
    """Return the 95% interval of a rank correlation of n independent pairs.

    It uses Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright 2000. It is nan for
    fewer than four pairs, or if |rho| is 1. Images of one prompt are not independent: n counts prompts.
    """
    if not math.isfinite(rho) or n < 4 or abs(rho) >= 1:
        return UNDEFINED
    centre, reach = math.atanh(rho), CONFIDENCE_QUANTILE * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Interval(math.tanh(centre - reach), math.tanh(centre + reach))
