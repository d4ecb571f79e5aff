"""Judging metrics by semantic error graphs (T2IScoreScore)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from operators.judging.judgement import OVERALL, Judgement, numbers
from operators.judging.ratings import metric_columns, resampled
from operators.statistics.bootstrap import UNDEFINED, Prompts
from operators.statistics.error_graphs import score_graphs
from operators.statistics.options import Convention, Sampling

MEASURES = ("ordering", "kendall_ordering", "separation", "delta")
WORDS: Mapping[Convention, str] = {
    "published": "every ordered pair of roots heads a walk, walks weigh by their images",
    "paper": "one root to a walk, walks weigh alike, separation of adjacent levels",
    "current": "one root to a walk, walks weigh by their images, separation and delta over pairs of nodes",
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
    averaged: Sequence[str],
    falling: Sequence[str],
    sampling: Sampling,
) -> list[Judgement]:
    """The mean over graphs of every measure by metric, overall and by subset.

    Only graphs of the subsets `averaged` count overall (all where it is empty). Metrics in `falling` count errors, so
    that their ordering and delta are turned round.
    """
    rated = set(graph_nodes.column("image_id").to_pylist())
    counts = _counts(scores, rated)
    found = []
    for convention in conventions:
        measured = measure_graphs(graph_nodes, scores, convention)
        turned = measured["metric"].isin(falling)
        for name in ("ordering", "kendall_ordering", "delta"):
            measured.loc[turned, name] *= -1
        whole = measured[measured["subset"].isin(averaged)] if averaged else measured
        for subset, rows in [(OVERALL, whole), *((str(name), its) for name, its in measured.groupby("subset"))]:
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
    found = []
    for metric, rows in measured.groupby("metric", sort=False):
        graphs = Prompts(rows["graph_id"].astype(str).to_list(), resamples=sampling.resamples, seed=sampling.seed)
        unscored, unrated = counts.get(str(metric), (0, 0)) if subset == OVERALL else (0, 0)
        for name in MEASURES:
            values = rows[name].to_numpy(np.float64)
            defined = bool(np.isfinite(values).all())
            words = f"{convention} convention: {WORDS[convention]}; mean over graphs; {resampled(graphs, 'graphs')}"
            found.append(
                Judgement(
                    str(metric),
                    f"{name}_{convention}",
                    float(values.mean()) if defined else math.nan,
                    graphs.mean_interval(values) if defined else UNDEFINED,
                    len(values) if defined else 0,
                    words if defined else "undefined: a node without any score",
                    subset=subset,
                    n_unscored=unscored,
                    n_unrated=unrated,
                )
            )
    return found
