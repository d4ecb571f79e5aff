"""Judging metrics by semantic error graphs (T2IScoreScore)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from operators.judging.judgement import OVERALL, Judgement, numbers
from operators.judging.matching import metric_columns
from operators.judging.ratings import resampled
from operators.statistics.bootstrap import UNDEFINED, Prompts
from operators.statistics.error_graphs import score_graphs
from operators.statistics.options import Convention, Sampling

MEASURES = ("ordering", "kendall_ordering", "separation", "delta")
WORDS: Mapping[Convention, str] = {
    "published": "every ordered pair of roots heads a walk, walks weigh by their images",
    "paper": "one root to a walk, walks weigh alike, separation of adjacent levels",
    "current": "one root to a walk, walks weigh by their scored images, "
    "separation and delta over pairs of nodes without a gap",
}


def measure_graphs(graph_nodes: pa.Table, scores: pa.Table, convention: Convention) -> pd.DataFrame:
    """Every graph and metric: subset, spearman, kendall, both also negated (ordering, kendall_ordering), separation,
    delta.

    1 is a right order where they are negated.
    """
    nodes = graph_nodes.to_pandas()
    found = score_graphs(nodes, pd.DataFrame(metric_columns(scores, "image")), convention)
    subsets = nodes.groupby("graph_id")["subset"].first()
    found["subset"] = found["graph_id"].map(subsets)
    found["ordering"], found["kendall_ordering"] = -found["spearman"], -found["kendall"]
    return found


def judge_graphs(
    graph_nodes: pa.Table,
    scores: pa.Table,
    *,
    conventions: Sequence[Convention],
    unpublished: Sequence[str],
    falling: Sequence[str],
    sampling: Sampling,
) -> list[Judgement]:
    """The mean over graphs of every measure by metric, overall and by subset.

    The graphs `unpublished` are left out of what was published. Metrics in `falling` count errors, so that their
    ordering and delta are turned round.
    """
    rated = set(graph_nodes.column("image_id").to_pylist())
    counts = _counts(scores, rated)
    found = []
    for convention in conventions:
        measured = measure_graphs(graph_nodes, scores, convention)
        if convention == "published":
            measured = measured[~measured["graph_id"].isin(unpublished)].copy()
        turned = measured["metric"].isin(falling)
        for name in ("ordering", "kendall_ordering", "delta"):
            measured.loc[turned, name] *= -1
        for subset, rows in [(OVERALL, measured), *((str(name), its) for name, its in measured.groupby("subset"))]:
            found += _means(rows, subset, convention, counts, sampling)
    return found


def _counts(scores: pa.Table, rated: set[str]) -> Mapping[str, tuple[int, int]]:
    """By metric, the graphs' images without a score, and the scored images of no graph."""
    long = scores.select(["image_id", "metric", "score"]).to_pandas()
    scored = long[np.isfinite(numbers(long["score"]))]
    return {
        str(metric): (len(rated - set(rows["image_id"])), len(set(rows["image_id"]) - rated))
        for metric, rows in scored.groupby("metric")
    }


def _means(
    measured: pd.DataFrame,
    subset: str,
    convention: Convention,
    counts: Mapping[str, tuple[int, int]],
    sampling: Sampling,
) -> list[Judgement]:
    return [
        judged._replace(metric=str(metric), subset=subset, n_unscored=unscored, n_unrated=unrated)
        for metric, rows in measured.groupby("metric", sort=False)
        for unscored, unrated in [counts.get(str(metric), (0, 0)) if subset == OVERALL else (0, 0)]
        for name in MEASURES
        for judged in [_mean(name, rows, convention, sampling)]
    ]


def _mean(name: str, rows: pd.DataFrame, convention: Convention, sampling: Sampling) -> Judgement:
    """A measure's mean over graphs; by `current` over those with a score, by the others only where all have theirs."""
    statistic, kept = f"{name}_{convention}", rows[np.isfinite(rows[name])] if convention == "current" else rows
    values = kept[name].to_numpy(np.float64)
    if not len(values) or not np.isfinite(values).all():
        return Judgement("", statistic, math.nan, UNDEFINED, 0, f"undefined: {_without_scores(name, rows)}")
    ids = kept["graph_id"].astype(str).to_list()
    graphs = Prompts(ids, resamples=sampling.resamples, seed=sampling.seed, name="graphs")
    words = f"{convention} convention: {WORDS[convention]}; mean over graphs; {resampled(graphs)}"
    return Judgement("", statistic, float(values.mean()), graphs.mean_interval(values), len(values), words)


def _without_scores(name: str, rows: pd.DataFrame) -> str:
    gaps = rows.loc[~np.isfinite(rows[name]), "graph_id"].astype(str).to_list()
    return f"{len(gaps)} of {len(rows)} graphs have a node without any score, first {gaps[0]}"
