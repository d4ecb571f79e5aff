"""Judging metrics by Winoground's pairings of two captions with two images."""

import numpy as np
import pyarrow as pa

from plumbline.operators.judging.judgement import OVERALL, Judgement, mean_judgement, undefined
from plumbline.operators.judging.matching import metric_columns
from plumbline.operators.statistics.bootstrap import Floats, Prompts
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.winoground import pairing_scores

SLOTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
"""Captions and images of a sample, in the order of their four scores."""


def judge_pairings(pairings: pa.Table, scores: pa.Table, sampling: Sampling) -> list[Judgement]:
    """Text, image and group score of every metric, over all samples and by tag; samples without all four scores left
    out.
    """
    frame = pairings.to_pandas()
    judgements = []
    for metric, column in metric_columns(scores, "image_and_prompt").items():
        scored = frame.join(column, on=["image_id", "prompt_id"])
        wide = scored.pivot(index="sample_id", columns=["caption", "image"], values="score")[SLOTS].astype("float64")
        complete = wide[np.isfinite(wide).all(axis=1)]
        tags = frame.groupby("sample_id")["tag"].first().reindex(complete.index)
        by_tag = {str(tag): complete[tags == tag] for tag in sorted(tags.dropna().unique())}
        for subset, rows in {OVERALL: complete, **by_tag}.items():
            samples = Prompts(list(rows.index.astype(str)), sampling, name="samples")
            unscored = len(wide) - len(complete) if subset == OVERALL else 0
            judged = _judge(metric, rows.to_numpy(np.float64), samples)
            judgements += [judgement._replace(subset=subset, n_unscored=unscored) for judgement in judged]
    return judgements


def _judge(metric: str, scores: Floats, samples: Prompts) -> list[Judgement]:
    """Of the four scores of every sample (samples, 4)."""
    right = pairing_scores(scores.reshape(-1, 2, 2))._asdict()
    if not len(scores):
        return [undefined(metric, statistic, 0, "no sample has all four scores") for statistic in right]
    words = "strict, a tie is wrong"
    return [
        mean_judgement(metric, statistic, values.astype(np.float64), samples, words)
        for statistic, values in right.items()
    ]
