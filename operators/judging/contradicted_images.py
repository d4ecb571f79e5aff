"""The images about which a metric and people differ most: for people to look at."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.judging.matching import IDS
from plumbline.operators.judging.preferences import PREFERENCE_SIGNS, majority_votes
from plumbline.operators.judging.ratings import mean_ratings
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.percentiles import percentile_rank

MOST = 4
"""Images, or pairs, of each template and metric; of a prompt one."""
FEWEST = 10
"""Rated images below which a rank says nothing."""
FAR = 0.5
"""Of the ranks, as shares of the rated images, which differ by so much at least."""


class ContradictedImage(NamedTuple):
    """A row of schema CONTRADICTED."""

    template: str
    metric: str
    image_id: str
    prompt_id: str
    generator: str
    why: str


def contradicted_ratings(ratings: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """The images whose ranks by people and by a metric are the farthest apart; `scores` name all ids."""
    keys = list(MATCH_COLUMNS[match])
    human = mean_ratings(ratings, match)[["template", *keys, "human"]]
    scored = scores.select([*IDS, "metric", "score"]).to_pandas().dropna(subset=["score"])
    both = scored.merge(human, on=keys)
    for (template, metric), rows in both.groupby(["template", "metric"], sort=False):
        if len(rows) < FEWEST:
            continue
        people, own = (_percentile_ranks(rows[name]) for name in ("human", "score"))
        far = rows.assign(people=people, own=own, apart=np.abs(people - own))
        for image in _first(far[far["apart"] >= FAR]):
            rated = f"people rate it {image.human:.1f} ({template}), percentile rank {image.people:.0%}"
            why = f"{rated}; {metric} has it at percentile rank {image.own:.0%} of the same images"
            yield _image(str(template), str(metric), image, "", why)


def _percentile_ranks(values: pd.Series) -> NDArray[np.float64]:
    first, last = (values.rank(method=method).to_numpy(np.float64) for method in ("min", "max"))
    return percentile_rank(first - 1, last - first + 1, len(values))


def contradicted_choices(preferences: pa.Table, scores: pa.Table, match: Match) -> Iterator[ContradictedImage]:
    """Both images of the pairs of which a metric prefers the other one than most raters, by the largest difference."""
    keys = list(MATCH_COLUMNS[match])
    votes = majority_votes(preferences)
    scored = scores.select([*IDS, "metric", "score"]).to_pandas().dropna(subset=["score"])
    both = votes[["template", "preferred"]].assign(pair=votes.index)
    for side in "ab":
        own = {"image_id": f"image_{side}", "generator": f"generator_{side}"}
        ids = votes[[own.get(key, key) for key in keys]].set_axis(keys, axis=1).assign(pair=votes.index)
        sided = ids.merge(scored, on=keys)[["pair", "metric", *IDS, "score"]]
        named = sided.rename(columns={name: f"{name}_{side}" for name in (*IDS, "score")})
        both = both.merge(named, on=["pair"] if side == "a" else ["pair", "metric"])
    difference = both["score_a"] - both["score_b"]
    sign = both["preferred"].map(PREFERENCE_SIGNS).astype("float64")  # of no row map keeps the type of text
    contrary = both.assign(apart=difference.abs(), prompt_id=both["prompt_id_a"])[sign * np.sign(difference) < 0]
    for (template, metric), rows in contrary.groupby(["template", "metric"], sort=False):
        for pair in _first(rows):
            better, worse = ("a", "b") if pair.preferred == "a" else ("b", "a")
            names = {side: getattr(pair, f"generator_{side}") for side in "ab"}
            liked = f"people prefer it to that of {names[worse]} ({template}), {metric} does not"
            other = f"{metric} prefers it to that of {names[better]}, people do not ({template})"
            yield _image(str(template), str(metric), pair, f"_{better}", liked)
            yield _image(str(template), str(metric), pair, f"_{worse}", other)


def _first(rows: pd.DataFrame) -> Iterator[Any]:
    """The rows that are the farthest apart, each prompt once."""
    ordered = rows.sort_values("apart", ascending=False, kind="stable")
    yield from ordered.drop_duplicates("prompt_id").head(MOST).itertuples()


def _image(template: str, metric: str, row: Any, side: str, why: str) -> ContradictedImage:
    image, prompt, generator = (str(getattr(row, f"{name}{side}")) for name in IDS)
    return ContradictedImage(template, metric, image, prompt, generator, why)
