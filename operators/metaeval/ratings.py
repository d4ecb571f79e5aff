"""Judges metrics by ratings of single images: correlations, AUROC and pairwise accuracy, by template and by skill."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.calibration import CALIBRATION_CONVENTIONS, NO_MARKS, PassMarks, judge_calibration
from plumbline.operators.metaeval.judgement import (
    OVERALL,
    Comparison,
    Judgement,
    compute_group_means,
    correct_p_values,
    make_undefined_judgement,
)
from plumbline.operators.metaeval.matching import split_by_metric
from plumbline.operators.statistics.agreement import STATISTICS, compute_spearman_viescore
from plumbline.operators.statistics.bootstrap import (
    CORRELATIONS,
    MAX_PROMPTS_IN_PAIRS,
    SHARES,
    UNDEFINED_INTERVAL,
    Floats,
    Longs,
    Prompts,
    compute_pairwise_accuracy,
)
from plumbline.operators.statistics.options import MATCH_COLUMNS, PAIRWISE_STATISTICS, Match, Sampling
from plumbline.operators.statistics.ordering import compute_correlation_p_value, permutation
from plumbline.operators.statistics.rounding import merge_equal
from plumbline.operators.statistics.ties import calibrate_ties

VIESCORE_STATISTIC = "spearman_viescore"
MEAN_OF_GROUPS = "mean of groups"  # subset of the judgements that are means over skills and generators
USUAL_SCALES = ((0, 1), (0, 10), (0, 100))  # for fractions and labels, typical ratings, and percentages
MAX_OFF_SCALE_FRACTION = (
    0.05  # largest fraction of a template's ratings (at least one rating) that may be off its scale
)


class RatedScores(NamedTuple):
    """A metric's scores and people's mean ratings of the same images."""

    metric: str
    template: str
    frame: pd.DataFrame  # columns prompt_id, generator, alone, human and score; the last two are finite
    n_unscored: int
    n_unrated: int


def average_ratings(ratings: pa.Table, match: Match) -> pd.DataFrame:
    """Return the mean rating of each image as `human`, with template, the matching columns, prompt_id and generator.

    Images without a rating are left out. An image without a prompt is marked as `alone` and treated as a prompt of its
    own. The order of the ratings does not affect the result, and means that differ only by rounding are equal.
    """
    keys = list(dict.fromkeys(["template", *MATCH_COLUMNS[match], "prompt_id", "generator"]))
    means = compute_group_means(ratings.to_pandas(), keys, "rating").rename("human").reset_index()
    means["human"] = merge_equal(means["human"].to_numpy(np.float64))
    alone = means["prompt_id"].isna()
    if "image_id" in keys:
        means["prompt_id"] = means["prompt_id"].fillna("image " + means["image_id"])
    return means.assign(alone=alone)[means["human"].notna()]


def match_scores(ratings: pa.Table, scores: pa.Table, match: Match) -> list[RatedScores]:
    """Return, for every template and metric, the images with both a score and a mean rating."""
    keys, rated = list(MATCH_COLUMNS[match]), []
    columns = split_by_metric(scores, match)
    for template, human in average_ratings(ratings, match).groupby("template", sort=False, dropna=False):
        rated_images = human.set_index(keys).index
        for metric, column in columns.items():
            scored = column[np.isfinite(column)].rename("score")
            joined = human.join(scored, on=keys)
            both = joined.loc[joined["score"].notna(), ["prompt_id", "generator", "alone", "human", "score"]]
            n_unrated = int((~scored.index.isin(rated_images)).sum())
            rated.append(RatedScores(metric, str(template), both, len(joined) - len(both), n_unrated))
    return rated


def judge_ratings(
    rated: Sequence[RatedScores],
    statistics: Sequence[str],
    skills: Mapping[str, Sequence[str]],
    sampling: Sampling,
    marks: PassMarks = NO_MARKS,
    *,
    by_generator: bool = False,
) -> list[Judgement]:
    """Return every statistic for every metric, over all images and by skill.

    With `by_generator`, the statistics are also computed by generator, and by generator and skill (LLMScore, table 1).
    In all groups, the same `marks` decide which images pass.
    """
    return [
        judgement._replace(subset=subset, generator=generator)
        for each in rated
        for subset, rows_of_skill in split_by_skill(each.frame, skills).items()
        for generator, frame in [("", rows_of_skill), *(split_by_generator(rows_of_skill) if by_generator else [])]
        for judgement in _judge_statistics(each, frame, statistics, sampling, marks)
    ]


def _judge_statistics(
    rated: RatedScores, frame: pd.DataFrame, statistics: Sequence[str], sampling: Sampling, marks: PassMarks
) -> list[Judgement]:
    human, score, prompts = frame["human"].to_numpy(), frame["score"].to_numpy(), list_rated_prompts(frame, sampling)
    judgements = []
    for statistic in statistics:
        if statistic in PAIRWISE_STATISTICS:
            judgements += _judge_pairs(rated.metric, human, score, prompts, grouped=statistic != PAIRWISE_STATISTICS[0])
        elif statistic in CALIBRATION_CONVENTIONS:
            passed = marks.find_thresholds(rated.template, rated.metric, rated.frame)
            judgements.append(judge_calibration(rated.metric, statistic, frame, passed))
        else:
            compute = _make_row_statistic(statistic, frame)
            judgements.append(_judge_correlation(rated.metric, statistic, compute, human, score, prompts))
    unscored, unrated = (rated.n_unscored, rated.n_unrated) if frame is rated.frame else (0, 0)
    return [
        judged._replace(
            convention=f"mean rating of an image's raters; {judged.convention}",
            template=rated.template,
            n_unscored=unscored,
            n_unrated=unrated,
            n_prompts=frame.loc[~frame["alone"], "prompt_id"].nunique(),
        )
        for judged in judgements
    ]


def _make_row_statistic(statistic: str, frame: pd.DataFrame) -> Callable[[Longs], float]:
    human, score = frame["human"].to_numpy(), frame["score"].to_numpy()
    if statistic == VIESCORE_STATISTIC:
        generators = frame["generator"].factorize()[0]
        return lambda rows: compute_spearman_viescore(human[rows], score[rows], generators[rows])
    return lambda rows: STATISTICS[statistic](human[rows], score[rows])


def judge_means(
    rated: Sequence[RatedScores], statistics: Sequence[str], skills: Mapping[str, Sequence[str]], sampling: Sampling
) -> list[Judgement]:
    """Return each correlation, and AUROC, averaged over groups of images (LLMScore, figure 5).

    Images are grouped by skill and generator, or by one of the two if the other is unknown. Groups whose statistic is
    undefined are left out.
    """
    judgements = list[Judgement]()
    for each in rated:
        human, score = each.frame["human"].to_numpy(), each.frame["score"].to_numpy()
        whole, *by_skill = split_by_skill(each.frame, skills).values()
        groups = [
            each.frame.index.isin(rows.index)
            for rows_of_skill in by_skill or [whole]
            for rows in [own for _, own in split_by_generator(rows_of_skill)] or [rows_of_skill]
        ]
        for statistic in (name for name in statistics if name in STATISTICS):
            compute = _make_group_mean(STATISTICS[statistic], human, score, groups)
            judged = _judge_correlation(
                each.metric, statistic, compute, human, score, list_rated_prompts(each.frame, sampling)
            )
            words = f"mean over {len(groups)} groups, each of a skill's images by one generator; {judged.convention}"
            judgements.append(judged._replace(convention=words, template=each.template, subset=MEAN_OF_GROUPS))
    return judgements


def _make_group_mean(
    compute: Callable[[Floats, Floats], float], human: Floats, score: Floats, groups: Sequence[NDArray[np.bool_]]
) -> Callable[[Longs], float]:
    def compute_group_mean(rows: Longs) -> float:
        values = [compute(human[own], score[own]) for own in (rows[group[rows]] for group in groups)]
        defined = [value for value in values if not math.isnan(value)]
        return float(np.mean(defined)) if defined else math.nan

    return compute_group_mean


def split_by_generator(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, rows in frame.groupby("generator"):
        yield str(name), rows


def split_by_skill(frame: pd.DataFrame, skills: Mapping[str, Sequence[str]]) -> dict[str, pd.DataFrame]:
    """Return the rows of `frame` by skill; the first entry, OVERALL, has all rows."""
    prompts: dict[str, set[str]] = {}
    for prompt, own in skills.items():
        for skill in own:
            prompts.setdefault(skill, set()).add(prompt)
    names = sorted(prompts.keys() - {OVERALL})
    return {OVERALL: frame, **{name: frame[frame["prompt_id"].isin(prompts[name])] for name in names}}


def _judge_correlation(
    metric: str, statistic: str, compute: Callable[[Longs], float], human: Floats, score: Floats, prompts: Prompts
) -> Judgement:
    try:
        value = compute(np.arange(len(human)))
    except ValueError as error:
        raise SourceError(f"ratings: {error}; use another statistic") from error
    if len(human) < 2:
        return make_undefined_judgement(
            metric, statistic, len(human), f"{len(human)} images with both a rating and a score"
        )
    if math.isnan(value):
        varying = "ratings or scores of a generator" if np.ptp(score) > 0 else "scores"
        equal = varying if np.ptp(human) > 0 else "ratings"
        return make_undefined_judgement(metric, statistic, len(human), f"all {equal} are equal")
    scale = SHARES if statistic == "auroc" else CORRELATIONS
    interval = prompts.interval(compute, scale) if prompts.have_enough_variation(human, score) else UNDEFINED_INTERVAL
    return Judgement(metric, statistic, value, interval, len(human), prompts.describe(interval))


def _judge_pairs(metric: str, human: Floats, score: Floats, prompts: Prompts, *, grouped: bool) -> list[Judgement]:
    """Return a metric's accuracy on pairs of images, and the largest difference between two scores that is still a tie.

    If `grouped`, only images of the same prompt are paired, and the accuracy is the mean over prompts. Both values are
    undefined if there are no pairs, or if people rate both images of every pair equally, because then every metric
    would be right with a threshold that ties all pairs.
    """
    which = "pairs within a prompt, mean over prompts, one threshold" if grouped else "all pairs of images"
    accuracy, epsilon = (f"{name}{'_grouped' * grouped}" for name in ("pairwise_accuracy", "epsilon"))
    words = f"tie calibration over {which}"
    best = calibrate_ties(human, score, prompts.codes.tolist() if grouped else None)
    if not best.pairs:
        return [make_undefined_judgement(metric, name, 0, "no pair of images") for name in (accuracy, epsilon)]
    if pd.Series(human).groupby(prompts.codes if grouped else np.zeros(len(human))).nunique().max() < 2:
        reason = f"people rate the images of every pair alike ({which})"
        return [make_undefined_judgement(metric, name, best.pairs, reason) for name in (accuracy, epsilon)]
    interval = prompts.pairwise_interval(human, score, best.epsilon, grouped=grouped)
    how = f"{prompts.describe(interval, SHARES if grouped else None)}, epsilon fixed"
    if prompts.count > MAX_PROMPTS_IN_PAIRS and not grouped:
        how = f"no interval: {prompts.count} {prompts.name}, but at most {MAX_PROMPTS_IN_PAIRS} can be resampled"
    return [
        Judgement(metric, accuracy, best.accuracy, interval, best.pairs, f"{words}; {how}"),
        Judgement(
            metric, epsilon, best.epsilon, UNDEFINED_INTERVAL, best.pairs, f"scores this close are tied; {words}"
        ),
    ]


def list_rated_prompts(frame: pd.DataFrame, sampling: Sampling) -> Prompts:
    """Return the prompts of the rated images in `frame`, in the form that the bootstrap resamples."""
    alone = frame["alone"]
    name = "images without a prompt" if alone.all() else "prompts and images without one"
    return Prompts(frame["prompt_id"].to_list(), sampling, name if alone.any() else "prompts")


def compare_metrics(rated: Sequence[RatedScores], statistics: Sequence[str], sampling: Sampling) -> list[Comparison]:
    """Return tests of whether two metrics agree with people equally well, for each template and pair of metrics.

    Only images that both metrics scored count, and only three statistics have a test. For Pearson's and Spearman's
    correlations, the test swaps the two metrics' scores or ranks on randomly chosen prompts. For pairwise accuracy
    within prompts, it flips the signs of the differences on randomly chosen prompts.
    """
    comparisons = []
    for template in dict.fromkeys(each.template for each in rated):
        pairs = list(combinations([each for each in rated if each.template == template], 2))
        for statistic in statistics:
            if statistic in ("pearson", "spearman"):
                comparisons += correct_p_values([_compare_correlations(a, b, statistic, sampling) for a, b in pairs])
            elif statistic == PAIRWISE_STATISTICS[1]:
                comparisons += correct_p_values([_compare_accuracies(a, b, sampling) for a, b in pairs])
    return comparisons


def _join_scores(a: RatedScores, b: RatedScores) -> pd.DataFrame:
    return a.frame.join(b.frame["score"].rename("score_b"), how="inner")


def _compare_correlations(a: RatedScores, b: RatedScores, statistic: str, sampling: Sampling) -> Comparison:
    rows = _join_scores(a, b)
    values = rows[["human", "score", "score_b"]]
    human, scores_a, scores_b = (values.rank() if statistic == "spearman" else values).to_numpy(np.float64).T
    correlate = STATISTICS[statistic]
    difference = correlate(human, scores_a) - correlate(human, scores_b)
    p_value = compute_correlation_p_value(
        human, scores_a, scores_b, rows["prompt_id"].to_list(), resamples=sampling.permutations, seed=sampling.seed
    )
    scores = "ranks" if statistic == "spearman" else "standardised scores"
    test = f"permutation: the metrics' {scores} exchanged by prompt, {sampling.permutations} draws"
    return Comparison(a.metric, b.metric, statistic, difference, p_value, test, len(rows), a.template)


def _compare_accuracies(a: RatedScores, b: RatedScores, sampling: Sampling) -> Comparison:
    """Return the test of whether two metrics have the same pairwise accuracy, each with its best threshold.

    Only prompts with several images count.
    """
    rows = _join_scores(a, b)
    human, prompts = rows["human"].to_numpy(), rows["prompt_id"].to_list()
    accuracies = []
    for column in ("score", "score_b"):
        epsilon = calibrate_ties(human, rows[column].to_numpy(), prompts).epsilon
        own = [
            compute_pairwise_accuracy(group["human"].to_numpy(), group[column].to_numpy(), epsilon)
            for _, group in rows.groupby("prompt_id", sort=False)
            if len(group) > 1
        ]
        accuracies.append(np.asarray(own, np.float64))
    differences = accuracies[0] - accuracies[1]
    p_value = permutation(differences, resamples=sampling.permutations, seed=sampling.seed)
    test = f"permutation of prompts' signs, {sampling.permutations} draws, each metric at its own epsilon"
    difference = float(differences.mean()) if len(differences) else math.nan
    return Comparison(
        a.metric, b.metric, PAIRWISE_STATISTICS[1], difference, p_value, test, len(differences), a.template
    )


def describe_off_scale_ratings(ratings: pa.Table) -> list[str]:
    """Return a warning for each template that has a few ratings outside a scale that fits all other ratings.

    Also warn if all negative ratings are the same number, such as -1 for a missing answer.
    """
    frame = ratings.select(["template", "image_id", "rater", "rating"]).to_pandas().dropna(subset=["rating"])
    warnings = []
    for template, rows in frame.groupby("template", sort=False):
        values = rows["rating"].to_numpy(np.float64)
        negative = values[values < 0]
        scale = next((scale for scale in USUAL_SCALES if _fits_scale(values, *scale)), None)
        if scale is not None:
            outside = rows[(values < scale[0]) | (values > scale[1])]
            for first in outside.head(1).itertuples():
                warnings.append(
                    f"{len(outside)} of {len(rows)} ratings ({template}) are outside {scale[0]} to {scale[1]}, the "
                    f"range of the others (first: {first.rating:g} for image {first.image_id} by {first.rater}); all "
                    "were counted; correct them, or set protocol.rating_range=[min,max]"
                )
        elif len(np.unique(negative)) == 1 and values.max() > 1:
            warnings.append(
                f"{len(negative)} of {len(rows)} ratings ({template}) are {negative[0]:g}, the only negative value, "
                "which may stand for a missing answer; all were counted; leave these cells empty, or set "
                "protocol.rating_range=[min,max] and protocol.out_of_range=left_out"
            )
    return warnings


def _fits_scale(values: Floats, low: int, high: int) -> bool:
    inside = (values >= low) & (values <= high)
    is_possible = high > 1 or bool((values[inside] < 1).any())
    return is_possible and int((~inside).sum()) <= max(1, MAX_OFF_SCALE_FRACTION * len(values))


def describe_ratings_of_several_prompts(ratings: pa.Table) -> list[str]:
    """Return a warning if images were rated for several prompts, so that image ids alone do not identify scores."""
    frame = ratings.select(["image_id", "prompt_id"]).to_pandas().dropna().drop_duplicates()
    twice = frame[frame.duplicated("image_id", keep=False)]
    if twice.empty:
        return []
    first = twice["image_id"].iloc[0]
    prompts = " and ".join(map(repr, twice.loc[twice["image_id"] == first, "prompt_id"].iloc[:2]))
    return [
        f"{twice['image_id'].nunique()} images are rated under several prompt ids, first {first} under {prompts}; each "
        "counts once per prompt; correct prompt_id, or set protocol.match=image_and_prompt if this is intended"
    ]
