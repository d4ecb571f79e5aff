"""Judges metrics by people's choices between two images for a prompt (Pick-a-Pic; Gecko's side-by-side template)."""

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
    judge_mean,
    make_undefined_judgement,
)
from plumbline.operators.metaeval.matching import (
    copy_ids_from_scores,
    list_distinct_ids,
    name_side_columns,
    select_images,
    split_by_metric,
)
from plumbline.operators.metaeval.people import judge_raters
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.statistics.agreement import UNSURE, find_majority_vote
from plumbline.operators.statistics.bootstrap import SHARES, Prompts
from plumbline.operators.statistics.options import (
    MATCH_COLUMNS,
    EqualScoreHandling,
    Level,
    Match,
    Sampling,
    UnsureHandling,
)
from plumbline.operators.statistics.ordering import permutation

ACCURACY_STATISTIC = "binary_accuracy"
PREFERENCE_SIGNS: Mapping[str, int] = {"a": 1, "b": -1, UNSURE: 0}
COMPARED_COLUMNS = {
    "template": "metric",
    "generator_a": "first_generator",
    "generator_b": "second_generator",
    "image_a": "first_image_id",
    "image_b": "second_image_id",
}
"""Columns of a table of comparisons (COMPARED_PAIRS), by the columns of people's choices that they are made from."""
CHOICE_BY_PREFERENCE = {"a": "first", "b": "second", UNSURE: "tie"}
"""A judge's word for each of people's choices; image a counts as the image that was shown first."""


class _Choices(NamedTuple):
    """A metric's choices between two images, compared with people's choices."""

    metric: str
    template: str
    frame: pd.DataFrame
    """A row for each pair of images that both have a score, with its prompt_id, people's choice (`preferred`: a, b or
    unsure), and `right`: 1 if the metric makes the same choice, 0 if it does not, or the credit for a tie.
    """
    n_unscored: int
    words: str
    """Description of how pairs that people or the metric do not decide are treated."""


def judge_preferences(
    preferences: pa.Table,
    scores: pa.Table,
    *,
    match: Match,
    unsure: UnsureHandling,
    sampling: Sampling,
    equal_scores: EqualScoreHandling = "half",
) -> tuple[list[Judgement], list[Comparison]]:
    """For each template, return how often each metric prefers the image that most raters prefer.

    Also return tests that compare the metrics in pairs.

    By default, a pair with equal scores counts half, so that a metric that never decides gets 0.5. `equal_scores` can
    make such a pair count as wrong instead.
    """
    judgements, comparisons = list[Judgement](), list[Comparison]()
    columns = split_by_metric(scores, match)
    for _, votes in find_majority_votes(preferences).groupby("template", sort=False):
        chosen = [
            _make_choices(metric, column, votes, match, unsure, equal_scores) for metric, column in columns.items()
        ]
        judgements += [_judge_accuracy(choices, sampling) for choices in chosen]
        comparisons += correct_p_values([_compare_choices(a, b, sampling) for a, b in combinations(chosen, 2)])
    return judgements, comparisons


def find_majority_votes(preferences: pa.Table) -> pd.DataFrame:
    """Return one row per template and pair of images, with the raters' most common choice, or `unsure` for a tie."""
    keys = ["template", "prompt_id", "image_a", "image_b", "generator_a", "generator_b"]
    votes = (
        preferences.to_pandas()
        .groupby(keys, sort=False, dropna=False)["preferred"]
        .agg(lambda column: find_majority_vote([vote if isinstance(vote, str) else None for vote in column]))
    )
    return votes.reset_index()


def convert_choices_to_ratings(preferences: pa.Table) -> pa.Table:
    """Return choices as ratings of pairs of images: 1 for a, 0 for neither, -1 for b.

    The agreement of the raters is computed from these ratings.
    """
    frame = preferences.to_pandas()
    pairs = frame["image_a"].fillna("") + " " + frame["image_b"].fillna("")
    rated = frame.assign(image_id=pairs, generator=None, rating=frame["preferred"].map(PREFERENCE_SIGNS))
    return pa.Table.from_pandas(rated, schemas.RATINGS, preserve_index=False)


def judge_choice_agreement(preferences: pa.Table, levels: Sequence[Level]) -> list[Judgement]:
    """Return Krippendorff's alpha of the choices by template, overall and by pair of generators (Gecko, table 11)."""
    ratings = convert_choices_to_ratings(preferences)
    judgements, rated = judge_raters(ratings, levels), ratings.to_pandas()
    for first, second, rows in _group_pairs(preferences.to_pandas()):
        signs = rated.loc[rows.index].assign(rating=rows["preferred"].map(PREFERENCE_SIGNS))
        own = judge_raters(pa.Table.from_pandas(signs, schemas.RATINGS, preserve_index=False), levels)
        judgements += [judged._replace(generator=first, other=second) for judged in own]
    return judgements


def _group_pairs(choices: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield, for each pair of generators, the two names (sorted) and the choices between their images."""
    for (a, b), rows in sort_sides(choices).groupby(["generator_a", "generator_b"]):
        yield str(a), str(b), rows


def sort_sides(choices: pd.DataFrame) -> pd.DataFrame:
    """Return the choices that name both generators, with sides swapped so that generator_a < generator_b."""
    choices = choices.dropna(subset=["generator_a", "generator_b"])
    swapped = choices["generator_a"] > choices["generator_b"]
    names = {"image_a": "image_b", "generator_a": "generator_b"}
    others = choices[swapped].rename(columns=names | {b: a for a, b in names.items()})
    others["preferred"] = others["preferred"].replace({"a": "b", "b": "a"})
    return pd.concat([choices[~swapped], others]).sort_index()


def convert_choices_to_comparisons(preferences: pa.Table, scores: pa.Table, match: Match) -> pd.DataFrame:
    """Return people's choices between scored images of two generators as comparisons (schema COMPARED_PAIRS).

    The images have the ids of the scores, and `metric` is the template. Each row is one person's choice.
    """
    for side in ("a", "b"):
        preferences = select_images(preferences, list_distinct_ids(scores), match, side)
    if not len(preferences):
        return schemas.COMPARED_PAIRS.empty_table().to_pandas()
    frame = preferences.to_pandas()
    for side in ("a", "b"):
        frame = copy_ids_from_scores(frame, scores, match, side)
    frame = frame.dropna(subset=["prompt_id", *COMPARED_COLUMNS, "preferred"])
    frame = frame[frame["generator_a"] != frame["generator_b"]].rename(columns=COMPARED_COLUMNS)
    signs = frame["preferred"].map(PREFERENCE_SIGNS).astype("float64")
    choices = frame["preferred"].map(CHOICE_BY_PREFERENCE)
    frame = frame.assign(choice=choices, p_first=(1 + signs) / 2, reason=None, error=None)
    return frame[schemas.COMPARED_PAIRS.names]


def average_choices(preferences: pa.Table) -> pd.DataFrame:
    """Return the raters' mean choice: 1 for the first generator's image, 0 for neither, -1 for the second's.

    Rows are prompts, and columns are pairs of generators, in both orders.
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
    unsure: UnsureHandling,
    sampling: Sampling,
    equal_scores: EqualScoreHandling = "half",
) -> list[Judgement]:
    """Return how often each template's mean ratings predict people's choices between images (Gecko, table 12).

    The ratings are judged like the scores of a metric. Accuracies are computed over all pairs of images, and then by
    pair of generators.
    """
    keys, judgements = list(MATCH_COLUMNS[match]), []
    means = average_ratings(ratings, match).dropna(subset=keys).drop_duplicates(["template", *keys], keep=False)
    for chosen, votes in find_majority_votes(preferences).groupby("template"):
        for template, rated in means.groupby("template"):
            for first, second, rows in [("", "", votes), *_group_pairs(votes)]:
                choices = _make_choices(PEOPLE, rated.set_index(keys)["human"], rows, match, unsure, equal_scores)
                judged = _judge_accuracy(choices._replace(template=f"{chosen} by {template}"), sampling)
                judgements.append(judged._replace(generator=first, other=second))
    return judgements


def _make_choices(
    metric: str,
    column: "pd.Series[float]",
    votes: pd.DataFrame,
    match: Match,
    unsure: UnsureHandling,
    equal_scores: EqualScoreHandling,
) -> _Choices:
    a, b = (select_scores_of_side(side, column, votes, match) for side in ("a", "b"))
    frame = votes[["prompt_id", "preferred"]].assign(sign=np.sign(a - b))
    counted = frame["preferred"].ne(UNSURE) if unsure == "left_out" else pd.Series(True, index=frame.index)
    scored = frame["sign"].notna()
    rows = frame[counted & scored]
    preferred = rows["preferred"].map(PREFERENCE_SIGNS)
    right = (preferred == rows["sign"]).astype("float64")
    right = right.where((rows["sign"] != 0) | (preferred == 0), 0.5 if equal_scores == "half" else 0.0)
    worth = "count half" if equal_scores == "half" else "are wrong where people decide"
    words = f"equal scores {worth}; undecided pairs {unsure.replace('_', ' ')}"
    n_unscored = int((counted & ~scored).sum())
    return _Choices(metric, str(votes["template"].iloc[0]), rows.assign(right=right), n_unscored, words)


def select_scores_of_side(
    side: str, column: "pd.Series[float]", votes: pd.DataFrame, match: Match
) -> "pd.Series[float]":
    """Return, for each row of `votes`, the score of the image on `side` (a or b); nan if it has none."""
    keys = list(MATCH_COLUMNS[match])
    renamed = votes.rename(columns={own: name for name, own in name_side_columns(side).items()})
    return renamed[keys].join(column.rename("score"), on=keys)["score"]


def _judge_accuracy(chosen: _Choices, sampling: Sampling) -> Judgement:
    right = chosen.frame["right"].to_numpy(np.float64)
    words = f"majority of raters; {chosen.words}"
    if len(right):
        prompts = Prompts(chosen.frame["prompt_id"].to_list(), sampling)
        judged = judge_mean(chosen.metric, ACCURACY_STATISTIC, right, prompts, words, SHARES)
    else:
        judged = make_undefined_judgement(
            chosen.metric, ACCURACY_STATISTIC, 0, f"no decided pair with both scores; {words}"
        )
    n_prompts = chosen.frame["prompt_id"].nunique()
    return judged._replace(template=chosen.template, n_unscored=chosen.n_unscored, n_prompts=n_prompts)


def _compare_choices(a: _Choices, b: _Choices, sampling: Sampling) -> Comparison:
    both = a.frame.join(b.frame["right"].rename("right_b"), how="inner")
    differences = both["right"] - both["right_b"]
    by_prompt = differences.groupby(both["prompt_id"]).sum().to_numpy()
    p_value = permutation(by_prompt, resamples=sampling.permutations, seed=sampling.seed)
    test = f"permutation of prompts' signs, {sampling.permutations} draws"
    difference = float(differences.mean()) if len(both) else math.nan
    return Comparison(a.metric, b.metric, ACCURACY_STATISTIC, difference, p_value, test, len(both), a.template)
