"""What is said of a metric: one number with its interval, its convention, and the rows that it stands on."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from plumbline.operators.statistics.bootstrap import UNDEFINED, Floats, Interval, Prompts, Scale
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.rounding import exact_means

OVERALL = "overall"
PEOPLE = "people"
"""What stands for a metric where it is the raters that are judged."""


class Judgement(NamedTuple):
    """A statistic of one metric."""

    metric: str
    statistic: str
    value: float
    interval: Interval
    n: int
    """Rows that it was computed from: images, pairs of images, samples or graphs."""
    convention: str
    """What was done, in words, with every choice that changes the number."""
    template: str = ""
    """What raters were asked."""
    subset: str = OVERALL
    """The skill or tag of the rows; all rows if it is OVERALL."""
    generator: str = ""
    """The generator of the rows; of all generators if it is empty."""
    other: str = ""
    """The second of two generators, for choices between their images."""
    n_unscored: int = 0
    """Rows that were rated and have no score."""
    n_unrated: int = 0
    """Rows that have a score and were not rated."""
    n_prompts: int = 0
    """Prompts of the images that were both rated and scored; 0 if the images name none."""

    @property
    def group(self) -> str:
        """Return the rows in words: `overall`, a skill, a generator, or both."""
        if not self.generator:
            return self.subset
        generators = f"generators {self.generator} and {self.other}" if self.other else f"generator {self.generator}"
        return generators if self.subset == OVERALL else f"{generators}, {self.subset}"

    @property
    def is_by_generator_and_skill(self) -> bool:
        """Return True if the rows are one generator's of one skill."""
        return bool(self.generator) and self.subset != OVERALL


class Comparison(NamedTuple):
    """Whether two metrics differ."""

    metric_a: str
    metric_b: str
    statistic: str
    difference: float
    """The statistic of a less that of b, on the rows that both scored."""
    p_value: float
    """Two-sided, before correction; nan where the test is not defined."""
    test: str
    n: int
    template: str = ""
    p_holm: float = math.nan
    """Corrected by Holm over all pairs of metrics of this template and statistic."""


class Order(NamedTuple):
    """Which of two generators is better by one judge."""

    judge: str
    """A metric, or `people`; where metrics scored different images, `people, where <metric> scored`."""
    generator_a: str
    generator_b: str
    better: str | None
    """The generator of the better mean where the test is significant and its ranks favour the same; null elsewhere."""
    difference: float
    p_value: float
    n: int
    """Prompts that have a value for both."""
    convention: str
    template: str = ""
    p_holm: float = math.nan


Tested = TypeVar("Tested", Comparison, Order)


def corrected(tests: Sequence[Tested]) -> list[Tested]:
    """The tests with their p-values corrected by Holm over all of them."""
    p_values = holm([test.p_value for test in tests])
    return [test._replace(p_holm=p_value) for test, p_value in zip(tests, p_values, strict=True)]


def mean_judgement(
    metric: str, statistic: str, values: Floats, prompts: Prompts, convention: str, scale: Scale | None = None
) -> Judgement:
    """Return the mean of the rows' values, on a scale if it is known, with its interval over prompts."""
    interval = prompts.mean_interval(values, scale)
    words = f"{convention}; {prompts.describe(interval, scale)}"
    return Judgement(metric, statistic, float(values.mean()), interval, len(values), words)


def undefined(metric: str, statistic: str, n: int, reason: str) -> Judgement:
    """Return a statistic without a value, with the reason."""
    return Judgement(metric, statistic, math.nan, UNDEFINED, n, f"undefined: {reason}")


def group_means(frame: pd.DataFrame, keys: Sequence[str], column: str) -> "pd.Series[float]":
    """Return the exact mean of a column for every value of the keys, in ascending order; nan without a number."""
    groups = frame.groupby(list(keys), dropna=False)
    means = exact_means(frame[column].to_numpy(np.float64), groups.ngroup().to_numpy(), groups.ngroups)
    return pd.Series(means, groups.size().index, name=column)


def numbers(column: pd.Series) -> "pd.Series[float]":
    """A column as floats, null as nan."""
    return pd.to_numeric(column, errors="coerce").astype("float64")
