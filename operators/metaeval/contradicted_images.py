"""Finds the images that a metric and people judge most differently."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.metaeval.matching import ID_COLUMNS, name_side_columns
from plumbline.operators.metaeval.preferences import PREFERENCE_SIGNS, find_majority_votes
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.percentiles import compute_percentile_rank

MAX_IMAGES = 4  # images (or pairs) per template and metric, each of a different prompt
MIN_RATED_IMAGES = 10  # minimum number of rated images for ranks
MIN_RANK_DIFFERENCE = 0.5  # smallest difference of percentile ranks that is shown


class ContradictedImage(NamedTuple):
    """An image that people and a metric judge very differently (schema CONTRADICTED_IMAGES)."""

    template: str
    metric: str
    image_id: str
    prompt_id: str
    generator: str
    why: str


def find_contradicted_ratings(ratings: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """Yield, for each template and metric, the images that people and the metric rank most differently.

    These are at most MAX_IMAGES images of different prompts, whose ranks differ by at least MIN_RANK_DIFFERENCE; none
    if fewer than MIN_RATED_IMAGES images are rated and scored. All rows of `scores` must have ids.
    """
    keys = list(MATCH_COLUMNS[match])
    human = average_ratings(ratings, match)[["template", *keys, "human"]]
    both = _read_scores(scores).merge(human, on=keys)
    for (template, metric), rows in both.groupby(["template", "metric"], sort=False):
        if len(rows) < MIN_RATED_IMAGES:
            continue
        ranks = {}
        for name in ("human", "score"):
            first, last = (rows[name].rank(method=method).to_numpy(np.float64) for method in ("min", "max"))
            ranks[name] = compute_percentile_rank(first - 1, last - first + 1, len(rows))
        difference = np.abs(ranks["human"] - ranks["score"])
        ranked = rows.assign(rank_by_people=ranks["human"], rank_by_metric=ranks["score"], difference=difference)
        for image in _select_largest(ranked[difference >= MIN_RANK_DIFFERENCE]):
            why = (
                f"people rate it {image.human:.1f} ({template}), percentile rank {image.rank_by_people:.0%}; by "
                f"{metric} its percentile rank among the same images is {image.rank_by_metric:.0%}"
            )
            yield _make_row(template, metric, image, "", why)


def find_contradicted_choices(preferences: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """Yield both images of the pairs for which a metric most clearly contradicts the majority of raters."""
    keys = list(MATCH_COLUMNS[match])
    votes = find_majority_votes(preferences)
    scored = _read_scores(scores)
    both = votes[["template", "preferred"]].assign(pair=votes.index)
    for side in "ab":
        names = name_side_columns(side)
        ids = votes[[names.get(key, key) for key in keys]].set_axis(keys, axis=1).assign(pair=votes.index)
        own_rows = ids.merge(scored, on=keys)[["pair", "metric", *ID_COLUMNS, "score"]]
        renamed = own_rows.rename(columns={name: f"{name}_{side}" for name in (*ID_COLUMNS, "score")})
        both = both.merge(renamed, on=["pair"] if side == "a" else ["pair", "metric"])
    difference = both["score_a"] - both["score_b"]
    sign = both["preferred"].map(PREFERENCE_SIGNS).astype("float64")  # if there are no rows, map keeps the string type
    contrary = both.assign(difference=difference.abs(), prompt_id=both["prompt_id_a"])[sign * np.sign(difference) < 0]
    for (template, metric), rows in contrary.groupby(["template", "metric"], sort=False):
        for pair in _select_largest(rows):
            better, worse = ("a", "b") if pair.preferred == "a" else ("b", "a")
            generators = {"a": pair.generator_a, "b": pair.generator_b}
            why_better = f"people prefer it to the image of {generators[worse]} ({template}), {metric} does not"
            why_worse = f"{metric} prefers it to the image of {generators[better]}, people do not ({template})"
            yield _make_row(template, metric, pair, f"_{better}", why_better)
            yield _make_row(template, metric, pair, f"_{worse}", why_worse)


def _read_scores(scores: pa.Table) -> pd.DataFrame:
    return scores.select([*ID_COLUMNS, "metric", "score"]).to_pandas().dropna(subset=["score"])


def _select_largest(rows: pd.DataFrame) -> Iterator[Any]:
    ordered = rows.sort_values("difference", ascending=False, kind="stable")
    yield from ordered.drop_duplicates("prompt_id").head(MAX_IMAGES).itertuples()


def _make_row(template: object, metric: object, row: Any, side: str, why: str) -> ContradictedImage:
    image, prompt, generator = (str(getattr(row, f"{name}{side}")) for name in ID_COLUMNS)
    return ContradictedImage(str(template), str(metric), image, prompt, generator, why)
