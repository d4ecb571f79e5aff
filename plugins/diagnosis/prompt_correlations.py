"""Correlations of metrics with properties of prompts ("What makes a good metric?", sec. 3)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from plumbline.operators.results.metric_correlations import Correlation, Floats, correlate_values
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns
from plumbline.operators.statistics.agreement import STATISTICS


class PromptNumbers(NamedTuple):
    """A number for each prompt. Prompts are identified by the hashes of their ids, in ascending order."""

    prompts: Hashes
    values: Floats

    def look_up(self, prompts: Hashes) -> Floats:
        """Return the values of these prompts (n,); nan for a prompt without a value."""
        if not len(self.prompts):
            return np.full(len(prompts), math.nan)
        rows = np.minimum(np.searchsorted(self.prompts, prompts), len(self.prompts) - 1)
        return np.where(self.prompts[rows] == prompts, self.values[rows], math.nan)


def make_prompt_numbers(prompts: Hashes, values: Sequence[float]) -> PromptNumbers:
    """Return the values (n,) of the prompts, sorted by prompt; if a prompt is repeated, its first value is used."""
    unique, rows = np.unique(prompts, return_index=True)
    return PromptNumbers(unique, np.asarray(values, np.float64)[rows])


def correlate_properties(
    scores: RunScores, properties: Mapping[str, Mapping[str, PromptNumbers]]
) -> Iterator[Correlation]:
    """Yield correlations between prompts' mean scores and their properties, for each metric, generator and property.

    `properties` contains, for each metric, the properties to correlate it with, by name.
    """
    for metric, numbers_by_name in properties.items():
        columns = scores.select_rows(metric).select_scored()
        for code, generator in enumerate(scores.generators):
            means = compute_prompt_means(columns.select(columns.generator == code))
            for name, numbers in numbers_by_name.items():
                values = numbers.look_up(means.prompts)
                has = np.isfinite(values)
                yield correlate_values(
                    metric, name, "property", generator, means.values[has], values[has], int(has.sum())
                )


def compute_prompt_means(columns: ScoreColumns) -> PromptNumbers:
    """Return the mean score of each prompt's images."""
    prompts, codes = np.unique(columns.prompt, return_inverse=True)
    sums, counts = (np.bincount(codes, weights, len(prompts)) for weights in (columns.score, None))
    return PromptNumbers(prompts, sums / np.maximum(counts, 1))


def correlate_means_by_value(means: PromptNumbers, numbers: PromptNumbers) -> float:
    """Return the rank correlation between a property's distinct values and the mean scores of prompts with each value.

    Even a weak trend can have a high correlation, because each mean covers many prompts.
    """
    values = numbers.look_up(means.prompts)
    has = np.isfinite(values)
    distinct, codes = np.unique(values[has], return_inverse=True)
    averages = np.bincount(codes, means.values[has], len(distinct)) / np.maximum(np.bincount(codes), 1)
    return STATISTICS["spearman"](distinct, averages)
