"""Images that a metric and people disagree about most, for people to look at."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.metaeval.matching import IDS
from plumbline.operators.metaeval.preferences import PREFERENCE_SIGNS, majority_votes
from plumbline.operators.metaeval.ratings import mean_ratings
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.percentiles import percentile_rank

MAX_IMAGES = 4
"""Number of images, or pairs, by template and metric, each of another prompt."""
MIN_RATED = 10
"""Number of rated images that ranks require."""
MIN_DIFFERENCE = 0.5
"""Smallest difference of percentile ranks that is shown."""
RANKED = ("human", "score")


class ContradictedImage(NamedTuple):
    """A row of schema CONTRADICTED."""

    template: str
    metric: str
    image_id: str
    prompt_id: str
    generator: str
    why: str


def contradicted_ratings(ratings: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """Yield the images whose ranks by people and by a metric differ most; `scores` must have all ids."""
    keys = list(MATCH_COLUMNS[match])
    human = mean_ratings(ratings, match)[["template", *keys, "human"]]
    scored = scores.select([*IDS, "metric", "score"]).to_pandas().dropna(subset=["score"])
    both = scored.merge(human, on=keys)
    for (template, metric), rows in both.groupby(["template", "metric"], sort=False):
        if len(rows) < MIN_RATED:
            continue
        ranks = [[rows[name].rank(method=method).to_numpy(np.float64) for method in ("min", "max")] for name in RANKED]
        people, own = (percentile_rank(first - 1, last - first + 1, len(rows)) for first, last in ranks)
        ranked = rows.assign(people=people, own=own, difference=np.abs(people - own))
        for image in _largest_differences(ranked[ranked["difference"] >= MIN_DIFFERENCE]):
            rated = f"people rate it {image.human:.1f} ({template}), percentile rank {image.people:.0%}"
            why = f"{rated}; {metric} has it at percentile rank {image.own:.0%} of the same images"
            yield _image(str(template), str(metric), image, "", why)


def contradicted_choices(preferences: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """Yield both images of the pairs that a metric orders most clearly against the majority of raters."""
    keys = list(MATCH_COLUMNS[match])
    votes = majority_votes(preferences)
    scored = scores.select([*IDS, "metric", "score"]).to_pandas().dropna(subset=["score"])
    both = votes[["template", "preferred"]].assign(pair=votes.index)
    for side in "ab":
        own = {"image_id": f"image_{side}", "generator": f"generator_{side}"}
        ids = votes[[own.get(key, key) for key in keys]].set_axis(keys, axis=1).assign(pair=votes.index)
        own_rows = ids.merge(scored, on=keys)[["pair", "metric", *IDS, "score"]]
        renamed = own_rows.rename(columns={name: f"{name}_{side}" for name in (*IDS, "score")})
        both = both.merge(renamed, on=["pair"] if side == "a" else ["pair", "metric"])
    difference = both["score_a"] - both["score_b"]
    sign = both["preferred"].map(PREFERENCE_SIGNS).astype("float64")  # without rows, map keeps the type of text
    contrary = both.assign(difference=difference.abs(), prompt_id=both["prompt_id_a"])[sign * np.sign(difference) < 0]
    for (template, metric), rows in contrary.groupby(["template", "metric"], sort=False):
        for pair in _largest_differences(rows):
            better, worse = ("a", "b") if pair.preferred == "a" else ("b", "a")
            names = {side: getattr(pair, f"generator_{side}") for side in "ab"}
            why_better = f"people prefer it to that of {names[worse]} ({template}), {metric} does not"
            why_worse = f"{metric} prefers it to that of {names[better]}, people do not ({template})"
            yield _image(str(template), str(metric), pair, f"_{better}", why_better)
            yield _image(str(template), str(metric), pair, f"_{worse}", why_worse)


def _largest_differences(rows: pd.DataFrame) -> Iterator[Any]:
    ordered = rows.sort_values("difference", ascending=False, kind="stable")
    yield from ordered.drop_duplicates("prompt_id").head(MAX_IMAGES).itertuples()


def _image(template: str, metric: str, row: Any, side: str, why: str) -> ContradictedImage:
    image, prompt, generator = (str(getattr(row, f"{name}{side}")) for name in IDS)
    return ContradictedImage(template, metric, image, prompt, generator, why)
