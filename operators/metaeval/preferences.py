"""Judging metrics by choices between two images of a prompt (Pick-a-Pic; Gecko's side-by-side template)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.metaeval.judgement import (
    PEOPLE,
    Comparison,
    Judgement,
    correct_p_values,
    mean_judgement,
    undefined,
)
from plumbline.operators.metaeval.matching import metric_columns
from plumbline.operators.metaeval.people import judge_raters
from plumbline.operators.metaeval.ratings import mean_ratings
from plumbline.operators.statistics.agreement import UNSURE, majority_vote
from plumbline.operators.statistics.bootstrap import SHARES, Prompts
from plumbline.operators.statistics.options import MATCH_COLUMNS, EqualScores, Level, Match, Sampling, Unsure
from plumbline.operators.statistics.ordering import permutation

ACCURACY = "binary_accuracy"


class _Ties(NamedTuple):
    """Treatment of pairs that people or a metric do not decide."""

    unsure: Unsure = "left_out"
    equal_scores: EqualScores = "half"

    @property
    def words(self) -> str:
        worth = "count half" if self.equal_scores == "half" else "are wrong where people decide"
        return f"equal scores {worth}; undecided pairs {self.unsure.replace('_', ' ')}"


class Chosen(NamedTuple):
    """A metric's choices, compared with people's."""

    metric: str
    template: str
    frame: pd.DataFrame
    """Rows of pairs with two scores: prompt_id, preferred (a, b, unsure) and right (1, 0, or the worth of a tie by
    `_Ties`)."""
    n_unscored: int


def judge_preferences(
    preferences: pa.Table,
    scores: pa.Table,
    *,
    match: Match,
    unsure: Unsure,
    sampling: Sampling,
    equal_scores: EqualScores = "half",
) -> tuple[list[Judgement], list[Comparison]]:
    """Judge metrics, by template, by the share of pairs whose preferred image is that of most raters, and compare them.

    A pair with equal scores counts half, so that a metric that never decides gets 0.5; or it counts as wrong.
    """
    ties = _Ties(unsure, equal_scores)
    judgements, comparisons = list[Judgement](), list[Comparison]()
    columns = metric_columns(scores, match)
    for _, votes in majority_votes(preferences).groupby("template", sort=False):
        chosen = [_choose(metric, column, votes, match, ties) for metric, column in columns.items()]
        judgements += [_accuracy(choices, ties, sampling) for choices in chosen]
        comparisons += correct_p_values([_permuted(a, b, sampling) for a, b in combinations(chosen, 2)])
    return judgements, comparisons


def majority_votes(preferences: pa.Table) -> pd.DataFrame:
    """Return one row per template and pair of images, with the choice of most raters."""
    keys = ["template", "prompt_id", "image_a", "image_b", "generator_a", "generator_b"]
    votes = (
        preferences.to_pandas()
        .groupby(keys, sort=False, dropna=False)["preferred"]
        .agg(lambda column: majority_vote([vote if isinstance(vote, str) else None for vote in column]))
    )
    return votes.reset_index()


def choices_as_ratings(preferences: pa.Table) -> pa.Table:
    """Return choices as ratings of pairs, for computing raters' agreement: 1 for a, 0 for neither, -1 for b."""
    frame = preferences.to_pandas()
    pairs = frame["image_a"].fillna("") + " " + frame["image_b"].fillna("")
    rated = frame.assign(image_id=pairs, generator=None, rating=frame["preferred"].map(PREFERENCE_SIGNS))
    return pa.Table.from_pandas(rated, schemas.RATINGS, preserve_index=False)


def judge_choosers(preferences: pa.Table, levels: Sequence[Level]) -> list[Judgement]:
    """Return Krippendorff's alpha of the choices by template, overall and by two generators (Gecko, table 11)."""
    ratings = choices_as_ratings(preferences)
    judgements, rated = judge_raters(ratings, levels), ratings.to_pandas()
    for (first, second), rows in group_pairs(sort_sides(preferences.to_pandas())):
        signs = rated.loc[rows.index].assign(rating=rows["preferred"].map(PREFERENCE_SIGNS))
        own = judge_raters(pa.Table.from_pandas(signs, schemas.RATINGS, preserve_index=False), levels)
        judgements += [judged._replace(generator=first, other=second) for judged in own]
    return judgements


def group_pairs(choices: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Yield every pair of generators with its rows, in the order of their names."""
    for (a, b), rows in choices.groupby(["generator_a", "generator_b"]):
        yield (str(a), str(b)), rows


def sort_sides(choices: pd.DataFrame) -> pd.DataFrame:
    """Return the choices that name both generators; sides are swapped so that generator a comes first by name."""
    choices = choices.dropna(subset=["generator_a", "generator_b"])
    swapped = choices["generator_a"] > choices["generator_b"]
    names = {"image_a": "image_b", "generator_a": "generator_b"}
    others = choices[swapped].rename(columns=names | {b: a for a, b in names.items()})
    others["preferred"] = others["preferred"].replace({"a": "b", "b": "a"})
    return pd.concat([choices[~swapped], others]).sort_index()


def mean_choices(preferences: pa.Table) -> pd.DataFrame:
    """Return the mean choice of raters: 1 for the first generator's image, 0 for neither, -1 for the second's.

    Rows are prompts, and columns pairs of generators, each in both orders.
    """
    frame = preferences.to_pandas()
    signs = frame["preferred"].map(PREFERENCE_SIGNS)
    names = {"generator_a": "generator_b", "generator_b": "generator_a"}
    both = pd.concat([frame.assign(sign=signs), frame.assign(sign=-signs).rename(columns=names)])
    return both.groupby(["prompt_id", *names])["sign"].mean().unstack(list(names))


def predict_choices(
    preferences: pa.Table,
    ratings: pa.Table,
    *,
    match: Match,
    unsure: Unsure,
    sampling: Sampling,
    equal_scores: EqualScores = "half",
) -> list[Judgement]:
    """Judge each template's mean ratings by people's choices, as metrics are judged (Gecko, table 12).

    The accuracies are over all pairs, and then by pair of generators.
    """
    keys, ties = list(MATCH_COLUMNS[match]), _Ties(unsure, equal_scores)
    means = mean_ratings(ratings, match).dropna(subset=keys).drop_duplicates(["template", *keys], keep=False)
    return [
        _accuracy(_choose(PEOPLE, rated.set_index(keys)["human"], rows, match, ties), ties, sampling)._replace(
            template=f"{chosen} by {template}", generator=first, other=second
        )
        for chosen, votes in majority_votes(preferences).groupby("template")
        for template, rated in means.groupby("template")
        for (first, second), rows in [(("", ""), votes), *group_pairs(sort_sides(votes))]
    ]


def _choose(metric: str, column: "pd.Series[float]", votes: pd.DataFrame, match: Match, ties: _Ties) -> Chosen:
    a, b = (scores_of_side(side, column, votes, match) for side in ("a", "b"))
    frame = votes[["prompt_id", "preferred"]].assign(sign=np.sign(a - b))
    counted = frame["preferred"].ne(UNSURE) if ties.unsure == "left_out" else pd.Series(True, index=frame.index)
    scored = frame["sign"].notna()
    rows = frame[counted & scored]
    template = str(votes["template"].iloc[0])
    return Chosen(metric, template, rows.assign(right=_right(rows, ties.equal_scores)), int((counted & ~scored).sum()))


def scores_of_side(side: str, column: "pd.Series[float]", votes: pd.DataFrame, match: Match) -> "pd.Series[float]":
    """Return the scores of the images on a side (a or b) of every pair."""
    keys = list(MATCH_COLUMNS[match])
    renamed = votes.rename(columns={f"image_{side}": "image_id", f"generator_{side}": "generator"})
    return renamed[keys].join(column.rename("score"), on=keys)["score"]


def _right(frame: pd.DataFrame, equal_scores: EqualScores) -> "pd.Series[float]":
    preferred = frame["preferred"].map(PREFERENCE_SIGNS)
    right = (preferred == frame["sign"]).astype("float64")
    return right.where((frame["sign"] != 0) | (preferred == 0), 0.5 if equal_scores == "half" else 0.0)


PREFERENCE_SIGNS: Mapping[str, int] = {"a": 1, "b": -1, UNSURE: 0}


def _accuracy(chosen: Chosen, ties: _Ties, sampling: Sampling) -> Judgement:
    right = chosen.frame["right"].to_numpy(np.float64)
    words = f"majority of raters; {ties.words}"
    if len(right):
        prompts = Prompts(chosen.frame["prompt_id"].to_list(), sampling)
        judged = mean_judgement(chosen.metric, ACCURACY, right, prompts, words, SHARES)
    else:
        judged = undefined(chosen.metric, ACCURACY, 0, f"no decided pair with both scores; {words}")
    n_prompts = chosen.frame["prompt_id"].nunique()
    return judged._replace(template=chosen.template, n_unscored=chosen.n_unscored, n_prompts=n_prompts)


def _permuted(a: Chosen, b: Chosen, sampling: Sampling) -> Comparison:
    both = a.frame.join(b.frame["right"].rename("right_b"), how="inner")
    differences = (both["right"] - both["right_b"]).groupby(both["prompt_id"]).sum().to_numpy()
    p_value = permutation(differences, resamples=sampling.permutations, seed=sampling.seed)
    test = f"permutation of prompts' signs, {sampling.permutations} draws"
    difference = float((both["right"] - both["right_b"]).mean()) if len(both) else math.nan
    return Comparison(a.metric, b.metric, ACCURACY, difference, p_value, test, len(both), a.template)
