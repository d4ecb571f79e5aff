"""Correlations of metrics over error graphs: are the same graphs hard? (T2IScoreScore, figures 6, 7, 12 and 13)."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base import schemas
from plumbline.operators.base.sentences import ShownTable, first_rows, number, plural
from plumbline.operators.metaeval.graphs import split_subsets
from plumbline.operators.metaeval.judgement import OVERALL
from plumbline.operators.statistics.rounding import merge_equal

CORRELATED = ("ordering", "separation")
"""The measures of the paper's figures."""


class CorrelationMatrix(NamedTuple):
    """Correlations of every two metrics by one measure, over the graphs of one subset."""

    measure: str
    subset: str
    convention: str
    graphs: int
    metrics: list[str]
    values: list[list[float]]
    """Correlations by row and column of `metrics`, 1 on the diagonal; nan if undefined."""
    left_out: int = 0
    """Metrics that are not shown."""

    @property
    def title(self) -> str:
        return f"{self.measure} of the same graphs, {self.subset}"

    @property
    def caption(self) -> str:
        over = f"over {self.graphs} graphs, {self.convention} convention."
        more = f" {plural(self.left_out, 'more metric')} in graph_correlations.parquet." if self.left_out else ""
        return f"Pearson's correlation in % between metrics {over}{more}"

    def first(self, most: int) -> "CorrelationMatrix":
        """Return the matrix of the first `most` metrics."""
        metrics, left_out = first_rows(self.metrics, most)
        values = [row[:most] for row in self.values[:most]]
        return self._replace(metrics=metrics, values=values, left_out=self.left_out + left_out)

    def as_table(self) -> ShownTable:
        """Return the matrix as text; columns are numbered as their rows are."""
        names = [f"{place} {metric}" for place, metric in enumerate(self.metrics, 1)]
        # whole percents, as in the paper's figures; + 0.0 removes the sign of -0
        percents = [[number(np.round(100 * value) + 0.0, 0) for value in row] for row in self.values]
        lines = [(name, *row) for name, row in zip(names, percents, strict=True)]
        return ShownTable(self.title, self.caption, ("", *map(str, range(1, len(names) + 1))), lines)


def correlate_graphs(measured: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson's correlation of every two metrics by convention, measure and subset (schema GRAPH_CORRELATIONS).

    `measured` has every graph by metric and convention (schema GRAPHS). A pair counts the `n` graphs that both
    metrics have a value for. Values that agree in their first nine digits are equal, and a metric whose values all are
    equal has no correlation.
    """
    found = [
        (convention, measure, subset, *correlation)
        for convention, rows in measured.groupby("convention", sort=False)
        for subset, subset_rows in split_subsets(rows).items()
        for measure in CORRELATED
        for correlation in _correlate(pivot_metrics(subset_rows, measure))
    ]
    return pd.DataFrame(found, columns=schemas.GRAPH_CORRELATIONS.names)


def pivot_metrics(measured: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure of one convention by graph and metric, the metrics in order of appearance."""
    metrics = list(measured["metric"].unique())
    return measured.pivot(index="graph_id", columns="metric", values=measure)[metrics]


def _correlate(wide: pd.DataFrame) -> Iterator[tuple[str, str, float, int]]:
    """Yield every two metrics with their correlation and the number of graphs with both values."""
    values = wide.apply(lambda column: merge_equal(column.to_numpy(np.float64)))
    known = values.notna().to_numpy(np.int64)
    pearson, n = values.corr().to_numpy(), known.T @ known
    for one, other in combinations(range(len(wide.columns)), 2):
        yield str(wide.columns[one]), str(wide.columns[other]), float(pearson[one, other]), int(n[one, other])


def correlation_matrices(correlations: pd.DataFrame) -> list[CorrelationMatrix]:
    """Return the matrices of the first convention, by measure, all graphs before the subsets."""
    if correlations.empty:
        return []
    convention = correlations["convention"].iloc[0]
    first_rows = correlations[correlations["convention"] == convention]
    matrices = [_matrix(rows) for _, rows in first_rows.groupby(["measure", "subset"], sort=False)]
    return sorted(matrices, key=lambda matrix: matrix.subset != OVERALL)


def _matrix(rows: pd.DataFrame) -> CorrelationMatrix:
    metrics = list(dict.fromkeys([*rows["metric"], *rows["other"]]))
    values = np.eye(len(metrics))
    one, other = (rows[name].map(metrics.index) for name in ("metric", "other"))
    values[one, other] = values[other, one] = rows["pearson"]
    measure, subset, convention = (str(rows[name].iloc[0]) for name in ("measure", "subset", "convention"))
    return CorrelationMatrix(measure, subset, convention, int(rows["n"].max()), metrics, values.tolist())
