"""Judges metrics by Winoground's pairings of two captions with two images."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.metaeval.judgement import OVERALL, Judgement, judge_mean, make_undefined_judgement
from plumbline.operators.metaeval.matching import split_by_metric
from plumbline.operators.statistics.bootstrap import SHARES, Floats, Prompts
from plumbline.operators.statistics.options import Sampling

CAPTION_IMAGE_SLOTS = [
    (0, 0),
    (0, 1),
    (1, 0),
    (1, 1),
]  # captions and images of a sample, in the order of their four scores


def judge_pairings(pairings: pa.Table, scores: pa.Table, sampling: Sampling) -> list[Judgement]:
    """Return the text, image and group scores of every metric, over all samples and for each tag.

    A sample counts for each of its tags (VQAScore, table 3); samples that lack any of the four scores are left out.
    """
    frame = pairings.to_pandas()
    judgements = []
    for metric, column in split_by_metric(scores, "image_and_prompt").items():
        scored = frame.join(column, on=["image_id", "prompt_id"])
        wide = scored.pivot(index="sample_id", columns=["caption", "image"], values="score")[
            CAPTION_IMAGE_SLOTS
        ].astype("float64")
        complete = wide[np.isfinite(wide).all(axis=1)]
        tags = frame.groupby("sample_id")["tags"].first().reindex(complete.index).explode().dropna()
        by_tag = {str(tag): complete.loc[group.index.unique()] for tag, group in tags.groupby(tags)}
        for subset, rows in {OVERALL: complete, **by_tag}.items():
            samples = Prompts(list(rows.index.astype(str)), sampling, name="samples")
            unscored = len(wide) - len(complete) if subset == OVERALL else 0
            right = pairing_scores(rows.to_numpy(np.float64).reshape(-1, 2, 2))
            for name, values in right._asdict().items():
                judged = make_undefined_judgement(metric, name, 0, "no sample has all four scores")
                if len(values):
                    share = values.astype(np.float64)
                    judged = judge_mean(metric, name, share, samples, "strict: a tie counts as wrong", SHARES)
                judgements.append(judged._replace(subset=subset, n_unscored=unscored))
    return judgements


class PairingScores(NamedTuple):
    """Winoground's and EqBen's three verdicts on each sample (samples,): True if right; a tie counts as wrong."""

    text: NDArray[np.bool_]
    """True if the right caption scores higher for both images."""
    image: NDArray[np.bool_]
    """True if the right image scores higher for both captions."""
    group: NDArray[np.bool_]
    """True if both `text` and `image` are true."""


def pairing_scores(scores: Floats) -> PairingScores:
    """Return Winoground's and EqBen's three scores (Thrush et al. 2022, section 4.1).

    `scores` is (samples, 2 captions, 2 images), where caption i matches image i. Raises ValueError if a score is not
    finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError("a sample lacks one of its four scores; leave it out")
    text = (scores[:, 0, 0] > scores[:, 1, 0]) & (scores[:, 1, 1] > scores[:, 0, 1])
    image = (scores[:, 0, 0] > scores[:, 0, 1]) & (scores[:, 1, 1] > scores[:, 1, 0])
    return PairingScores(text, image, text & image)
