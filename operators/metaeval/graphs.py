"""Judging metrics by semantic error graphs (T2IScoreScore)."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.metaeval.judgement import OVERALL, Judgement, mean_judgement, numbers, undefined
from plumbline.operators.metaeval.matching import metric_columns
from plumbline.operators.metrics.metric import direction
from plumbline.operators.statistics.bootstrap import CORRELATIONS, SHARES, Prompts
from plumbline.operators.statistics.error_graphs import score_graphs
from plumbline.operators.statistics.options import Convention, Sampling

MEASURES = ("ordering", "kendall_ordering", "separation", "delta")
SCALES = {"ordering": CORRELATIONS, "kendall_ordering": CORRELATIONS, "separation": SHARES}
"""Scales of the measures that have limits."""
WORDS: Mapping[Convention, str] = {
    "published": "every ordered pair of roots heads a walk, walks weigh by their images",
    "paper": "one root to a walk, walks weigh alike, separation of adjacent levels, ties have the lowest rank",
    "current": "one root to a walk, walks weigh by their scored images, "
    "separation and delta over pairs of nodes without a gap",
}


class JudgedGraphs(NamedTuple):
    """Judgements of metrics by error graphs."""

    judgements: list[Judgement]
    measured: pd.DataFrame
    """Every graph that counts, by metric and convention (the columns of operators/base/schemas.py, GRAPHS)."""


def measure_graphs(
    graph_nodes: pa.Table, scores: pa.Table, convention: Convention, falling: Container[str] = ()
) -> pd.DataFrame:
    """Return every graph and metric: subset, spearman, kendall, ordering, kendall_ordering, separation, delta.

    `ordering` and `kendall_ordering` are the negated correlations: 1 is the right order. The results of metrics that
    prefer lower scores (`falling`) are negated after ranking, because the ranks of ties by equation 1 depend on the
    scores' own direction.
    """
    nodes = graph_nodes.to_pandas()
    measured = score_graphs(nodes, pd.DataFrame(metric_columns(scores, "image")), convention)
    signs = measured["metric"].map(lambda metric: direction(metric, falling))
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
    falling: Container[str] = (),
) -> JudgedGraphs:
    """Return the mean over graphs of every measure by metric, overall and by subset, and the measures of each graph.

    The scores are in the metrics' own direction; higher measures mean more agreement even for `falling` metrics. The
    convention `published` leaves out the graphs `unpublished`.
    """
    unmatched = _unmatched(scores, set(graph_nodes.column("image_id").to_pylist()))
    judgements: list[Judgement] = []
    frames = []
    for convention in conventions:
        measured = measure_graphs(graph_nodes, scores, convention, falling).assign(convention=convention)
        if convention == "published":
            measured = measured[~measured["graph_id"].isin(unpublished)]
        frames.append(measured)
        for subset, subset_rows in split_subsets(measured).items():
            for metric, rows in subset_rows.groupby("metric", sort=False):
                unscored, unrated = unmatched.get(str(metric), (0, 0)) if subset == OVERALL else (0, 0)
                judgements += [
                    _mean(str(metric), name, rows, convention, sampling)._replace(
                        subset=subset, n_unscored=unscored, n_unrated=unrated
                    )
                    for name in MEASURES
                ]
    return JudgedGraphs(judgements, pd.concat(frames, ignore_index=True))


def split_subsets(measured: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of all graphs as OVERALL, then those of each subset."""
    return {OVERALL: measured, **{str(name): rows for name, rows in measured.groupby("subset")}}


def _unmatched(scores: pa.Table, rated: set[str]) -> Mapping[str, tuple[int, int]]:
    """Count by metric the graphs' images without a score, and the scored images that are in no graph."""
    long = scores.select(["image_id", "metric", "score"]).to_pandas()
    scored = long[np.isfinite(numbers(long["score"]))]
    return {
        str(metric): (len(rated - set(rows["image_id"])), len(set(rows["image_id"]) - rated))
        for metric, rows in scored.groupby("metric")
    }


def _mean(metric: str, name: str, rows: pd.DataFrame, convention: Convention, sampling: Sampling) -> Judgement:
    """Return a measure's mean over graphs; `current` skips graphs without a value, others need all values."""
    statistic, defined = f"{name}_{convention}", np.isfinite(rows[name])
    kept = rows[defined] if convention == "current" else rows
    if not len(kept) or not defined[kept.index].all():
        gaps = rows.loc[~defined, "graph_id"].astype(str).to_list()
        reason = f"{len(gaps)} of {len(rows)} graphs have a node without any score, first {gaps[0]}"
        return undefined(metric, statistic, 0, reason)
    graphs = Prompts(kept["graph_id"].astype(str).to_list(), sampling, name="graphs")
    words = f"{convention} convention: {WORDS[convention]}; mean over graphs"
    return mean_judgement(metric, statistic, kept[name].to_numpy(np.float64), graphs, words, SCALES.get(name))
