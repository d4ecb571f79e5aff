"""Agreement of raters: Krippendorff's alpha, majority votes, and the prompts on which raters agree."""

import math
from collections.abc import Sequence
from statistics import multimode

import numpy as np
import pandas as pd
from evalica import InsufficientRatingsError, alpha

from plumbline.operators.statistics.options import Level

UNSURE = "unsure"


def krippendorff_alpha(ratings: pd.DataFrame, level: Level) -> float:
    """Krippendorff's alpha of a long table (unit, rater, rating), in [-1, 1]; missing ratings are allowed for.

    nan where no unit has two ratings. Source: Krippendorff 2018, Content Analysis, chapter 12; used in Gecko, section
    4.1.
    """
    if ratings.groupby("unit")["rating"].count().max() < 2:
        return math.nan
    wide = ratings.pivot(index="rater", columns="unit", values="rating")
    try:
        return float(alpha(wide, distance=level).alpha)
    except InsufficientRatingsError:
        return math.nan


def majority_vote(votes: Sequence[str | None]) -> str:
    """What most said, and `unsure` where two are said equally often or nothing is (Gecko, App. D.1)."""
    most = multimode(vote for vote in votes if vote is not None)
    return most[0] if len(most) == 1 else UNSURE


def reliable_prompts(ratings: pd.DataFrame, *, share: float = 0.5) -> set[str]:
    """The prompts on which raters agree for every generator and template (Gecko, section 4.1).

    `ratings` has prompt_id, generator, template, image_id, rater and rating. A prompt is reliable where the variance
    of its ratings is below `share` of the largest of all prompts, for each generator and template that rated it;
    where all agree everywhere (largest 0), every prompt is. A prompt without a rating (all unsure) in some template
    is not. Ratings that name no generator count as of one.
    """
    by = ["generator", "template"]
    rated = ratings.groupby([*by, "prompt_id"], dropna=False)["rating"]
    variance = rated.agg(lambda values: np.var(values.dropna()) if values.notna().any() else np.nan).reset_index()
    largest = variance.groupby(by, dropna=False)["rating"].transform("max")
    variance["agrees"] = (variance["rating"] < share * largest) | ((largest == 0) & variance["rating"].notna())
    wanted = ratings[by].drop_duplicates().shape[0]
    agreed = variance.groupby("prompt_id")["agrees"].agg(["all", "count"])
    return set(agreed.index[agreed["all"] & (agreed["count"] == wanted)].astype(str))
