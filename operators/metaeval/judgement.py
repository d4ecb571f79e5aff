"""Judgements of a metric: each is a value with its interval, its convention, and its number of rows."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL, Floats, Interval, Prompts, Scale
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.rounding import compute_exact_means

OVERALL = "overall"
PEOPLE = "people"  # in place of a metric's name, for judgements of the raters


class Judgement(NamedTuple):
    """A statistic that measures how well a metric agrees with people, such as a correlation, with its interval."""

    metric: str
    statistic: str
    value: float
    interval: Interval
    n: int  # number of rows used: images, pairs of images, samples or graphs
    convention: str  # description of the computation, with every choice that affects the value
    template: str = ""  # template that the raters answered
    subset: str = OVERALL  # skill or tag of the rows; OVERALL for all rows
    generator: str = ""  # empty for all generators
    other: str = ""  # second generator, for choices between two generators' images
    n_unscored: int = 0  # rated rows without a score
    n_unrated: int = 0  # scored rows without a rating
    n_prompts: int = 0  # prompts of the rated and scored images; 0 if their prompts are unknown

    @property
    def group(self) -> str:
        """Description of the rows used: `overall`, a skill, one or two generators, or generators and a skill."""
        if not self.generator:
            return self.subset
        generators = f"generators {self.generator} and {self.other}" if self.other else f"generator {self.generator}"
        return generators if self.subset == OVERALL else f"{generators}, {self.subset}"

    @property
    def is_by_generator_and_skill(self) -> bool:
        return bool(self.generator) and self.subset != OVERALL


class Comparison(NamedTuple):
    """A test of whether two metrics agree with people equally well."""

    metric_a: str
    metric_b: str
    statistic: str
    difference: float  # statistic of a - statistic of b, on the rows that both scored
    p_value: float  # two-sided, before correction; nan if undefined
    test: str
    n: int
    template: str = ""
    p_holm: float = math.nan  # corrected by Holm over all pairs of metrics of this template and statistic


class Order(NamedTuple):
    """The order of two generators according to one judge: a metric or people."""

    judge: str  # a metric, or `people`; if metrics scored different images, `people, where <metric> scored`
    generator_a: str
    generator_b: str
    better: str | None  # generator with the better mean, if the test is significant and its ranks agree
    difference: float
    p_value: float
    n: int  # prompts with values for both generators
    convention: str
    template: str = ""
    p_holm: float = math.nan


Tested = TypeVar("Tested", Comparison, Order)


def correct_p_values(tests: Sequence[Tested]) -> list[Tested]:
    """Return the tests with p-values that are corrected jointly by Holm's method."""
    p_values = holm([test.p_value for test in tests])
    return [test._replace(p_holm=p_value) for test, p_value in zip(tests, p_values, strict=True)]


def judge_mean(
    metric: str, statistic: str, values: Floats, prompts: Prompts, convention: str, scale: Scale | None = None
) -> Judgement:
    """Return the mean of a metric's values as a judgement, with a bootstrap interval that resamples prompts."""
    interval = prompts.mean_interval(values, scale)
    words = f"{convention}; {prompts.describe(interval, scale)}"
    return Judgement(metric, statistic, float(values.mean()), interval, len(values), words)


def make_undefined_judgement(metric: str, statistic: str, n: int, reason: str) -> Judgement:
    return Judgement(metric, statistic, math.nan, UNDEFINED_INTERVAL, n, f"undefined: {reason}")


def compute_group_means(frame: pd.DataFrame, keys: Sequence[str], column: str) -> "pd.Series[float]":
    """Return the exact mean of a column for each value of the keys, which are sorted.

    Rows without a number in the column are ignored. If a group has no other rows, its mean is nan.
    """
    groups = frame.groupby(list(keys), dropna=False)
    means = compute_exact_means(frame[column].to_numpy(np.float64), groups.ngroup().to_numpy(), groups.ngroups)
    return pd.Series(means, groups.size().index, name=column)


def compute_mean_matrix(shape: tuple[int, ...], row: NDArray[Any], column: NDArray[Any], values: Floats) -> Floats:
    """Return the mean of the values in each cell of a matrix; nan for empty cells."""
    sums, counts = np.zeros((2, *shape))
    np.add.at(sums, (row, column), values)
    np.add.at(counts, (row, column), 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


def convert_to_floats(column: pd.Series) -> "pd.Series[float]":
    """Return the column as floats, with nan for nulls."""
    return pd.to_numeric(column, errors="coerce").astype("float64")
