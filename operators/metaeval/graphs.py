"""Judges metrics by semantic error graphs (T2IScoreScore), describes the graphs, and correlates the metrics."""

from collections.abc import Container, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.base.sentences import (
    NO_VALUE_MARK,
    ShownTable,
    format_number,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.metaeval.judgement import (
    OVERALL,
    Judgement,
    convert_to_floats,
    judge_mean,
    make_undefined_judgement,
)
from plumbline.operators.metaeval.matching import split_by_metric
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.statistics.bootstrap import CORRELATIONS, SHARES, Prompts
from plumbline.operators.statistics.error_graphs import score_graphs
from plumbline.operators.statistics.options import Convention, Sampling
from plumbline.operators.statistics.rounding import merge_equal

MEASURE_NAMES = ("ordering", "kendall_ordering", "separation", "delta")
MEASURE_SCALES = {
    "ordering": CORRELATIONS,
    "kendall_ordering": CORRELATIONS,
    "separation": SHARES,
}  # delta has no limits
CORRELATED_MEASURES = ("ordering", "separation")  # the measures of the paper's figures 6, 7, 12 and 13
CONVENTION_DESCRIPTIONS: Mapping[Convention, str] = {
    "published": "every ordered pair of roots starts a walk, walks are weighted by their images",
    "paper": "one root per walk, equal weights, separation of adjacent levels, ties have the lowest rank",
    "current": "one root per walk, walks are weighted by their scored images, "
    "separation and delta over pairs of nodes without a gap",
}
CONTENT_HEADINGS = {
    "images": ("source", "Images by source."),
    "prompts": ("source", "Graphs by source of their prompts."),
    "errors": ("type", "Errors added by edges, by type."),
}
"""Heading of the first column, and caption, of each table of `make_contents_tables` (T2IScoreScore, figure 2)."""


def measure_graphs(
    graph_nodes: pa.Table, scores: pa.Table, convention: Convention, lower_is_better: Container[str] = ()
) -> pd.DataFrame:
    """Return the subset and the measures of every graph, with a row for each graph and metric.

    `ordering` and `kendall_ordering` are the negated correlations, so 1 means the right order. For metrics in
    `lower_is_better`, the correlations and `delta` are negated instead of the scores, because the ranks of equal scores
    depend on the direction of the scores (T2IScoreScore, equation 1).
    """
    nodes = graph_nodes.to_pandas()
    measured = score_graphs(nodes, pd.DataFrame(split_by_metric(scores, "image")), convention)
    signs = measured["metric"].map(lambda metric: get_direction(metric, lower_is_better))
    measured = measured.assign(**{name: signs * measured[name] for name in ("spearman", "kendall", "delta")})
    return measured.assign(
        subset=measured["graph_id"].map(nodes.groupby("graph_id")["subset"].first()),
        ordering=-measured["spearman"],
        kendall_ordering=-measured["kendall"],
    )


def judge_graphs(
    graph_nodes: pa.Table,
    scores: pa.Table,
    *,
    conventions: Sequence[Convention],
    unpublished: Sequence[str],
    sampling: Sampling,
    lower_is_better: Container[str] = (),
) -> tuple[list[Judgement], pd.DataFrame]:
    """Return each metric's mean of every measure, overall and by subset, and results per graph (schema GRAPHS).

    Scores are not negated for metrics in `lower_is_better`, but higher measures mean more agreement for every metric.
    The convention `published` leaves out the graphs in `unpublished`.
    """
    in_graphs = set(graph_nodes.column("image_id").to_pylist())
    long = scores.select(["image_id", "metric", "score"]).to_pandas()
    scored_rows = long[np.isfinite(convert_to_floats(long["score"]))].groupby("metric")["image_id"]
    scored = {str(metric): set(images) for metric, images in scored_rows}
    judgements, frames = list[Judgement](), []
    for convention in conventions:
        measured = measure_graphs(graph_nodes, scores, convention, lower_is_better).assign(convention=convention)
        if convention == "published":
            measured = measured[~measured["graph_id"].isin(unpublished)]
        frames.append(measured)
        for subset, subset_rows in split_subsets(measured).items():
            for name, rows in subset_rows.groupby("metric", sort=False):
                metric, unscored, unrated = str(name), 0, 0
                if subset == OVERALL and metric in scored:
                    unscored, unrated = len(in_graphs - scored[metric]), len(scored[metric] - in_graphs)
                for measure in MEASURE_NAMES:
                    judged = _judge_mean(metric, measure, rows, convention, sampling)
                    judgements.append(judged._replace(subset=subset, n_unscored=unscored, n_unrated=unrated))
    return judgements, pd.concat(frames, ignore_index=True)


def _judge_mean(metric: str, measure: str, rows: pd.DataFrame, convention: Convention, sampling: Sampling) -> Judgement:
    """Return the mean of a measure over graphs.

    The convention `current` skips graphs without a value. With any other convention, a single graph without a value
    makes the mean undefined.
    """
    statistic, defined = f"{measure}_{convention}", np.isfinite(rows[measure])
    kept = rows[defined] if convention == "current" else rows
    if not len(kept) or not defined[kept.index].all():
        gaps = rows.loc[~defined, "graph_id"].astype(str).to_list()
        reason = f"{len(gaps)} of {len(rows)} graphs have a node without any score, first {gaps[0]}"
        return make_undefined_judgement(metric, statistic, 0, reason)
    graphs = Prompts(kept["graph_id"].astype(str).to_list(), sampling, name="graphs")
    words = f"{convention} convention: {CONVENTION_DESCRIPTIONS[convention]}; mean over graphs"
    return judge_mean(metric, statistic, kept[measure].to_numpy(np.float64), graphs, words, MEASURE_SCALES.get(measure))


def split_subsets(measured: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of measured graphs by subset; the first entry, OVERALL, has all rows."""
    return {OVERALL: measured, **{str(name): rows for name, rows in measured.groupby("subset")}}


def score_nodes(graph_nodes: pa.Table, scores: pa.Table) -> pd.DataFrame:
    """Return every metric's score for every image of the graphs, as the metric returned it (schema GRAPH_IMAGES).

    Rows are ordered by graph and level. The score is missing if a metric did not score the image.
    """
    nodes = graph_nodes.select(["graph_id", "subset", "node", "level", "image_id"]).to_pandas()
    order = pd.DataFrame({"graph": pd.factorize(nodes["graph_id"])[0], **nodes[["level", "node", "image_id"]]})
    nodes = nodes.loc[order.sort_values([*order.columns]).index]
    wide = pd.DataFrame(split_by_metric(scores, "image")).reindex(nodes["image_id"])
    columns = [nodes.assign(metric=metric, score=column.to_numpy(np.float64)) for metric, column in wide.items()]
    return pd.concat(columns, ignore_index=True)[schemas.GRAPH_IMAGES.names]


def average_nodes(images: pd.DataFrame) -> pd.DataFrame:
    """Return each metric's mean score for every node, with the number of scored images (schema GRAPH_MEANS)."""
    keys = [name for name in schemas.GRAPH_MEANS.names if name not in ("n", "mean", "deviation")]
    grouped = images.groupby(keys, sort=False)["score"]
    found = {"n": grouped.count(), "mean": grouped.mean(), "deviation": grouped.std(ddof=0)}
    return pd.DataFrame(found).reset_index()


def count_contents(graph_nodes: pa.Table) -> pd.DataFrame:
    """Return counts and fractions of images by source, prompts by source and errors by type (schema GRAPH_CONTENTS).

    They are computed over all graphs, and then by subset. An error is counted once for every edge that adds it. Unknown
    sources and types are left out.
    """
    nodes = graph_nodes.to_pandas()
    known = nodes[nodes["parents"].notna() & nodes["errors"].notna()].drop_duplicates(["graph_id", "node"])
    errors = {(node.graph_id, node.node): {*node.errors} for node in known.itertuples()}
    added = []
    for node in known.itertuples():
        for parent in node.parents:
            for error in sorted(errors[node.graph_id, node.node] - errors[node.graph_id, parent]):
                name, is_typed, _ = error.partition(":")
                added.append((node.subset, name.strip() if is_typed else "no type"))
    columns = {
        "images": nodes[["subset", "generator"]],
        "prompts": nodes.groupby("graph_id")[["subset", "prompt_source"]].first(),
        "errors": pd.DataFrame(added, columns=["subset", "type"]),
    }
    found = [
        (about, subset, str(name), int(n), n / len(rows))
        for about, frame in columns.items()
        for subset, rows in split_subsets(frame.dropna()).items()
        for name, n in rows.iloc[:, 1].value_counts().items()
    ]
    return pd.DataFrame(found, columns=schemas.GRAPH_CONTENTS.names)


def make_contents_tables(contents: pd.DataFrame) -> list[ShownTable]:
    """Return a table per counted item: a row per source or type, a column per subset, cells like `46.2% (1312)`."""
    tables = []
    for about, rows in contents.groupby("about", sort=False):
        cells = {
            (row.name, row.subset): f"{format_number(100 * row.share, 1)}% ({row.n})"
            for row in rows.itertuples(index=False)
        }
        names, subsets = (list(dict.fromkeys(rows[column])) for column in ("name", "subset"))
        lines = [(name, *(cells.get((name, subset), NO_VALUE_MARK) for subset in subsets)) for name in names]
        heading, caption = CONTENT_HEADINGS[str(about)]
        tables.append(ShownTable(f"{about} of the error graphs", caption, (heading, *subsets), lines))
    return tables


class CorrelationMatrix(NamedTuple):
    """Correlations between metrics on one measure, over the graphs of one subset.

    The correlations show whether the same graphs are hard for different metrics.
    """

    measure: str
    subset: str
    convention: str
    graphs: int
    metrics: list[str]
    values: list[list[float]]  # by row and column of `metrics`, 1 on the diagonal; nan if undefined
    left_out: int = 0  # number of metrics that are not shown

    @property
    def title(self) -> str:
        return f"{self.measure} of the same graphs, {self.subset}"

    @property
    def caption(self) -> str:
        over = f"over {self.graphs} graphs, {self.convention} convention."
        more = (
            f" {format_quantity(self.left_out, 'more metric')} in graph_correlations.parquet." if self.left_out else ""
        )
        return f"Pearson's correlation in % between metrics {over}{more}"

    def select_first(self, limit: int) -> "CorrelationMatrix":
        """Return the part of the matrix for the first `limit` metrics."""
        metrics, left_out = take_first_rows(self.metrics, limit)
        values = [row[:limit] for row in self.values[:limit]]
        return self._replace(metrics=metrics, values=values, left_out=self.left_out + left_out)

    def make_table(self) -> ShownTable:
        """Return the matrix as a table for display, in whole percent; column headings are row numbers."""
        names = [f"{place} {metric}" for place, metric in enumerate(self.metrics, 1)]
        # whole percents, as in the paper's figures; + 0.0 removes the sign of -0
        percents = [[format_number(np.round(100 * value) + 0.0, 0) for value in row] for row in self.values]
        lines = [(name, *row) for name, row in zip(names, percents, strict=True)]
        return ShownTable(self.title, self.caption, ("", *map(str, range(1, len(names) + 1))), lines)


def correlate_graphs(measured: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson's correlation of every pair of metrics by convention, measure and subset (GRAPH_CORRELATIONS).

    `measured` has a row for every graph, metric and convention (schema GRAPHS). A correlation is computed over the `n`
    graphs for which both metrics have a value. Values that agree in their first nine digits count as equal, and a
    metric whose values are all equal has no correlation.
    """
    found = []
    for convention, convention_rows in measured.groupby("convention", sort=False):
        for subset, rows in split_subsets(convention_rows).items():
            for measure in CORRELATED_MEASURES:
                values = pivot_metrics(rows, measure).apply(lambda column: merge_equal(column.to_numpy(np.float64)))
                known = values.notna().to_numpy(np.int64)
                pearson, n = values.corr().to_numpy(), known.T @ known
                for one, other in combinations(range(len(values.columns)), 2):
                    metrics = str(values.columns[one]), str(values.columns[other])
                    found.append(
                        (convention, measure, subset, *metrics, float(pearson[one, other]), int(n[one, other]))
                    )
    return pd.DataFrame(found, columns=schemas.GRAPH_CORRELATIONS.names)


def pivot_metrics(measured: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure by graph (rows) and metric (columns); `measured` must have results of one convention only."""
    metrics = list(measured["metric"].unique())
    return measured.pivot(index="graph_id", columns="metric", values=measure)[metrics]


def make_correlation_matrices(correlations: pd.DataFrame) -> list[CorrelationMatrix]:
    """Return, for each measure, the metrics' correlations over all graphs, then for each subset.

    Only the first convention in `correlations` (schema GRAPH_CORRELATIONS) is used.
    """
    if correlations.empty:
        return []
    convention = str(correlations["convention"].iloc[0])
    matrices = []
    shown = correlations[correlations["convention"] == convention]
    for (measure, subset), rows in shown.groupby(["measure", "subset"], sort=False):
        metrics = list(dict.fromkeys([*rows["metric"], *rows["other"]]))
        values = np.eye(len(metrics))
        one, other = (rows[name].map(metrics.index) for name in ("metric", "other"))
        values[one, other] = values[other, one] = rows["pearson"]
        graphs = int(rows["n"].max())
        matrices.append(CorrelationMatrix(str(measure), str(subset), convention, graphs, metrics, values.tolist()))
    return sorted(matrices, key=lambda matrix: matrix.subset != OVERALL)
