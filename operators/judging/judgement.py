"""What is said of a metric: one number with its interval, its convention, and the rows that it stands on."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from operators import rows
from operators.statistics.bootstrap import UNDEFINED, Floats, Interval, Prompts

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
    n_unscored: int = 0
    """Rows that were rated and have no score."""
    n_unrated: int = 0
    """Rows that have a score and were not rated."""


class Comparison(NamedTuple):
    """Whether two metrics differ."""

    metric_a: str
    metric_b: str
    statistic: str
    difference: float
    """The statistic of a less that of b, on the rows that both scored."""
    p_value: float
    """Two-sided, before correction; nan where the test is not defined."""
    p_holm: float
    """Corrected by Holm over all pairs of metrics of this template and statistic."""
    test: str
    n: int
    template: str = ""


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
    p_holm: float
    n: int
    """Prompts that have a value for both."""
    convention: str
    template: str = ""


def judgement_table(judgements: Sequence[Judgement]) -> pa.Table:
    """Judgements as a table of schema JUDGEMENTS; what is undefined is null."""
    records = [{**judged._asdict(), "low": judged.interval.low, "high": judged.interval.high} for judged in judgements]
    return _table(records, rows.JUDGEMENTS)


def comparison_table(comparisons: Sequence[Comparison]) -> pa.Table:
    """Comparisons as a table of schema COMPARISONS."""
    return _table([compared._asdict() for compared in comparisons], rows.COMPARISONS)


def order_table(orders: Sequence[Order]) -> pa.Table:
    """Orders as a table of schema ORDERS."""
    return _table([order._asdict() for order in orders], rows.ORDERS)


def _table(records: Sequence[dict[str, object]], schema: pa.Schema) -> pa.Table:
    defined = [{name: _defined(value) for name, value in record.items()} for record in records]
    return rows.table([{name: record[name] for name in schema.names} for record in defined], schema)


def _defined(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def mean_judgement(metric: str, statistic: str, values: Floats, prompts: Prompts, convention: str) -> Judgement:
    """The mean of the rows' values, with its interval over prompts."""
    interval = prompts.mean_interval(values)
    words = f"{convention}; {prompts.words}"
    return Judgement(metric, statistic, float(values.mean()), interval, len(values), words)


def undefined(metric: str, statistic: str, n: int, reason: str) -> Judgement:
    """A statistic without a value, and why."""
    return Judgement(metric, statistic, math.nan, UNDEFINED, n, f"undefined: {reason}")


def numbers(column: pd.Series) -> "pd.Series[float]":
    """A column as floats, null as nan."""
    return pd.to_numeric(column, errors="coerce").astype("float64")
