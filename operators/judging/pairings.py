"""Judging metrics by Winoground's pairings of two captions with two images."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from operators.judging.judgement import OVERALL, Judgement, numbers
from operators.judging.matching import metric_columns
from operators.judging.ratings import resampled
from operators.statistics.bootstrap import UNDEFINED, Prompts
from operators.statistics.options import Sampling
from operators.statistics.winoground import pairing_scores

SLOTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
"""Captions and images of a sample, in the order of their four scores."""


def judge_pairings(pairings: pa.Table, scores: pa.Table, sampling: Sampling) -> list[Judgement]:
    """Text, image and group score of every metric, over all samples and by tag; samples without all four scores left
    out.
    """
    frame = pairings.to_pandas()
    found = []
    for metric, column in metric_columns(scores, "image_and_prompt").items():
        scored = frame.join(column, on=["image_id", "prompt_id"])
        wide = scored.pivot(index="sample_id", columns=["caption", "image"], values="score")[SLOTS]
        complete = wide[np.isfinite(numbers_of(wide)).all(axis=1)]
        tags = frame.groupby("sample_id")["tag"].first().reindex(complete.index)
        for subset, rows in [(OVERALL, complete), *_by_tag(complete, tags)]:
            judged = _judge(metric, subset, rows, sampling)
            missing = len(wide) - len(complete) if subset == OVERALL else 0
            found += [judgement._replace(n_unscored=missing) for judgement in judged]
    return found


def numbers_of(wide: pd.DataFrame) -> NDArray[np.float64]:
    """The four scores of every sample (samples, 4)."""
    return np.asarray(wide.apply(numbers).to_numpy(np.float64))


def _by_tag(complete: pd.DataFrame, tags: "pd.Series[str]") -> list[tuple[str, pd.DataFrame]]:
    return [(str(tag), complete[tags == tag]) for tag in sorted(tags.dropna().unique())]


def _judge(metric: str, subset: str, rows: pd.DataFrame, sampling: Sampling) -> Sequence[Judgement]:
    right = pairing_scores(numbers_of(rows).reshape(-1, 2, 2))
    samples = Prompts(list(rows.index.astype(str)), resamples=sampling.resamples, seed=sampling.seed, name="samples")
    words = f"strict, a tie is wrong; {resampled(samples)}"
    if not len(rows):
        words = "undefined: no sample has all four scores"
    return [
        Judgement(
            metric,
            statistic,
            float(values.mean()) if len(rows) else math.nan,
            samples.mean_interval(values.astype(np.float64)) if len(rows) else UNDEFINED,
            len(rows),
            words,
            subset=subset,
        )
        for statistic, values in right._asdict().items()
    ]
