"""Estimates people's mean ratings and win rates over all prompts that a metric scored.

People rate only some of the prompts. The metric predicts their ratings of every prompt, and the rated prompts reveal
the metric's error for each generator. The method is prediction-powered inference (statistics/prediction_powered.py);
each rating is predicted by a line that was fitted on other prompts (Zrnic and Candès 2024, Cross-prediction-powered
inference).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from plumbline.operators.metaeval.calibration import PassMarks, calibrate_metric
from plumbline.operators.metaeval.judgement import compute_mean_matrix
from plumbline.operators.metaeval.matching import copy_ids_from_scores, split_by_metric
from plumbline.operators.metaeval.preferences import PREFERENCE_SIGNS, find_majority_votes, select_scores_of_side
from plumbline.operators.metaeval.ratings import RatedScores, average_ratings
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL, Interval
from plumbline.operators.statistics.confidence_levels import CONFIDENCE
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.statistics.prediction_powered import (
    MIN_DIFFERENT_LABELS,
    MIN_LABELS,
    compute_widening_factor,
    count_different_labels,
    has_enough_labels,
    powered_mean,
)
from plumbline.operators.statistics.shares import compute_exact_interval, correct_share, estimate_share

Floats = NDArray[np.float64]

N_FOLDS = 5  # ratings of each fold of the rated prompts are predicted from the other folds
ROUNDING_TOLERANCE = 1e-20  # scores are equal if their variance / mean square is below this
Scale = Literal["rating", "win_rate", "passing"]
EQUAL_VALUES: Mapping[Scale, float] = {"rating": 0.0, "win_rate": 0.5}
"""Difference of ratings, or win rate, if two generators are equally good."""


class CorrectedMean(NamedTuple):
    """One estimate (schema CORRECTED_MEANS) of a mean for a generator or a pair, from people's ratings and a metric."""

    template: str
    metric: str
    scale: Scale
    generator: str
    other: str  # second generator of a pair; empty for the mean of a single generator
    corrected: float
    low: float
    high: float
    people: float
    people_low: float
    people_high: float
    predicted: float
    predicted_low: float
    predicted_high: float
    worth: float
    n_rated: int
    n_scored: int
    better: str = ""
    metric_better: str = ""
    note: str = ""

    @property
    def interval(self) -> Interval:
        return Interval(self.low, self.high)


class Estimate(NamedTuple):
    """A mean over prompts, with each prompt's contribution to its standard error."""

    value: float
    shares: Floats  # contribution of each prompt (prompts,) to the error, whose square is the sum of their squares
    prompts: int  # number of prompts in the mean

    @property
    def error(self) -> float:
        """Standard error, slightly widened to account for the fitted parameters."""
        return math.sqrt(float(self.shares @ self.shares)) * float(compute_widening_factor(self.prompts))

    def interval(self, level: float) -> Interval:
        """Return Student's t interval; undefined for fewer than three prompts, or if nearly all values are equal."""
        if self.prompts < 3 or int(count_different_labels(self.shares[self.shares != 0])) < MIN_DIFFERENT_LABELS:
            return UNDEFINED_INTERVAL
        half_width = float(scipy.special.stdtrit(self.prompts - 1, (1 + level) / 2)) * self.error
        return Interval(self.value - half_width, self.value + half_width)


class CombinedEstimate(NamedTuple):
    """Three estimates of the same mean: from people and a metric together, from people alone, and from the metric."""

    corrected: Estimate
    people: Estimate
    predicted: Estimate
    note: str = ""  # reason if the corrected mean is undefined


class LabelledPrompts(NamedTuple):
    """The labels that people gave to prompts, and a metric's predictions of these labels.

    The prompts are those of one generator, or of one pair of generators. Arrays are (prompts,), with nan for missing
    values.
    """

    labels: Floats  # by people
    predictions: Floats  # the metric's predictions of the same labels
    others: Floats  # the metric's predictions for the other prompts


def correct_mean(data: LabelledPrompts) -> CombinedEstimate:
    """Return the mean over all prompts, assuming that the labelled prompts were drawn at random."""
    rated, other = np.isfinite(data.labels), np.isfinite(data.others)
    labels, predictions, others = data.labels[rated], data.predictions[rated], data.others[other]
    people = _estimate_mean(data.labels, rated)
    predicted = _estimate_mean(np.where(rated, data.predictions, data.others), rated | other)
    if not has_enough_labels(labels):
        note = f"not enough ratings: {len(labels)} prompts, at least {MIN_LABELS} are needed"
        if len(labels) >= MIN_LABELS:
            equal = len(labels) - int(count_different_labels(labels))
            note = f"not enough ratings that differ: {equal} of {len(labels)} prompts are rated alike"
        return CombinedEstimate(people, people, predicted, note)
    if len(others) < 2:  # all prompts are rated, so the metric cannot add anything
        return CombinedEstimate(people, people, predicted)
    found = powered_mean(labels, predictions, others)
    power, shares = float(found.power), np.zeros(len(rated))
    residuals = labels - power * predictions
    shares[rated] = (residuals - residuals.mean()) / len(labels)
    shares[other] = power * (others - others.mean()) / len(others)
    return CombinedEstimate(Estimate(float(found.estimate), shares, len(labels)), people, predicted)


def _estimate_mean(values: Floats, known: NDArray[np.bool_]) -> Estimate:
    shares, n = np.zeros(len(values)), int(known.sum())
    value = float(values[known].mean()) if n else math.nan
    shares[known] = (values[known] - value) / max(n, 1)
    return Estimate(value, shares, n)


def combine_means(weights: Sequence[float], means: Sequence[CombinedEstimate], start: float = 0.0) -> CombinedEstimate:
    """Return an estimate of `start` plus the weighted sum of the means, which were estimated over the same prompts."""

    def sum_estimates(estimates: Sequence[Estimate]) -> Estimate:
        values = [weight * estimate.value for weight, estimate in zip(weights, estimates, strict=True)]
        shares = [weight * estimate.shares for weight, estimate in zip(weights, estimates, strict=True)]
        return Estimate(start + sum(values), np.sum(shares, axis=0), min(each.prompts for each in estimates))

    return CombinedEstimate(
        corrected=sum_estimates([mean.corrected for mean in means]),
        people=sum_estimates([mean.people for mean in means]),
        predicted=sum_estimates([mean.predicted for mean in means]),
        note=next((mean.note for mean in means if mean.note), ""),
    )


def predict_labels(labels: Floats, scores: Floats, others: Floats) -> list[LabelledPrompts]:
    """Return, for each generator, its labels and the labels that linear regression predicts from the metric's scores.

    All generators share one line. The labelled prompts are divided into folds, and a fold's labels are predicted by a
    line fitted on the other folds. Scores of unlabelled prompts (`others`) are converted by the average of these lines.
    Arrays are (generators, prompts).
    """
    rated = np.isfinite(labels).any(axis=0)
    folds = np.where(rated, (np.cumsum(rated) - 1) % N_FOLDS, -1)
    training = [rated & (folds != fold) for fold in range(N_FOLDS)]
    lines = np.array([_fit_line(scores[:, prompts], labels[:, prompts]) for prompts in training])
    slope, intercept = lines[folds].T
    mean_slope, mean_intercept = np.nanmean(lines, axis=0)
    return list(map(LabelledPrompts, labels, slope * scores + intercept, mean_slope * others + mean_intercept))


def _fit_line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the slope and intercept of a line fitted to points (generators, prompts), ignoring nan.

    The slope is estimated within generators, so that a metric's preference for some generators does not affect it. The
    slope is at least 0: a metric that contradicts people is ignored.
    """
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return math.nan, math.nan
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    dx, dy = (np.where(known, z - np.where(known, z, 0).sum(axis=1, keepdims=True) / count, 0) for z in (x, y))
    spread = float((dx**2).sum())
    varies = spread > ROUNDING_TOLERANCE * float((x[known] ** 2).sum())
    slope = max(float((dx * dy).sum()) / spread, 0.0) if varies else 0.0
    return slope, float(y[known].mean() - slope * x[known].mean())


def correct_ratings(
    ratings: pa.Table, scores: pa.Table, run: RunScores, match: Match, lower_is_better: Collection[str]
) -> Iterator[CorrectedMean]:
    """Yield a row with the corrected mean rating of each scored generator, and a row for each pair of generators.

    A pair's row contains the difference between the two means. It is left out if one of them is undefined, because
    too few ratings are known.
    The rows are grouped by metric, then by template.

    `scores` has the scores of rated images, negated for metrics with `lower_is_better`; `run` has all scores, not
    negated.
    """
    human = copy_ids_from_scores(average_ratings(ratings, match), scores, match).dropna(subset=["generator"])
    for metric, column in split_by_metric(scores, match).items():
        rated = human.join(column.rename("score"), on=list(MATCH_COLUMNS[match])).dropna(subset=["score"])
        averaged = _average_scores(run, metric, lower_is_better, rated["generator"], rated["prompt_id"])
        for template, rows in rated.groupby("template", sort=False, dropna=False):
            labels, own = (averaged.average(rows["generator"], rows, column) for column in ("human", "score"))
            data = predict_labels(labels, own, np.where(np.isfinite(labels), math.nan, averaged.scores))
            means = dict(zip(averaged.generators, map(correct_mean, data), strict=True))
            yield from make_rating_rows(str(template), metric, means, dict(zip(means, averaged.scores, strict=True)))


def correct_choices(
    preferences: pa.Table, scores: pa.Table, run: RunScores, match: Match, lower_is_better: Collection[str]
) -> Iterator[CorrectedMean]:
    """Yield the corrected win rates of all generators and of all compared pairs, by template and metric.

    The majority of raters decides; ties count half. The arguments are the same as in `correct_ratings`.
    """
    votes = find_majority_votes(preferences)
    votes = copy_ids_from_scores(copy_ids_from_scores(votes, scores, match, "a"), scores, match, "b")
    votes = votes.dropna(subset=["generator_a", "generator_b"])
    votes = votes[votes["generator_a"] != votes["generator_b"]]
    first = np.where(votes["generator_a"] < votes["generator_b"], 1, -1)
    votes["vote"] = _compute_win_share(first * votes["preferred"].map(PREFERENCE_SIGNS).astype("float64"))
    for metric, column in split_by_metric(scores, match).items():
        a, b = (select_scores_of_side(side, column, votes, match) for side in "ab")
        both = votes.assign(choice=_compute_win_share(first * np.sign(a - b))).dropna(subset=["choice"])
        names = both[["generator_a", "generator_b"]]
        both = both.assign(generator_a=names.min(axis=1), generator_b=names.max(axis=1))
        generators = pd.concat([names[name] for name in names])
        averaged = _average_scores(run, metric, lower_is_better, generators, both["prompt_id"])
        for template, template_rows in both.groupby("template", sort=False):
            pairs = {}
            for (name_a, name_b), rows in template_rows.groupby(["generator_a", "generator_b"]):
                row_a, row_b = (averaged.generators.index(name) for name in (name_a, name_b))
                labels, choices = (
                    averaged.average(rows["generator_a"], rows, column)[row_a] for column in ("vote", "choice")
                )
                others = _compute_win_share(np.sign(averaged.scores[row_a] - averaged.scores[row_b]))
                data = LabelledPrompts(labels, choices, np.where(np.isfinite(labels), math.nan, others))
                pairs[str(name_a), str(name_b)] = correct_mean(data)
            yield from make_choice_rows(str(template), metric, pairs)


def correct_shares(
    rated: Sequence[RatedScores], marks: PassMarks, run: RunScores, lower_is_better: Collection[str]
) -> Iterator[CorrectedMean]:
    """Yield the fraction of images that people would pass, by template, metric and generator.

    It is computed from the fraction that the metric passes and the metric's error rates, which are assumed to be the
    same for all generators. `run` has all scores, not negated.
    """
    for template, metric, frame in ((each.template, each.metric, each.frame) for each in rated if len(each.frame)):
        thresholds = marks.find_thresholds(template, metric, frame)
        sensitivity, specificity = calibrate_metric(frame, thresholds)
        scored = run.select_rows(metric).select_scored()
        passes = get_direction(metric, lower_is_better) * scored.score >= thresholds.score
        for code, generator in enumerate(run.generators):
            own = scored.generator == code
            if not generator or not own.any():
                continue
            predicted = estimate_share(passes[own], scored.prompt[own].view(np.int64))
            labelled = frame[frame["generator"] == generator]
            passed = (labelled["human"] >= thresholds.rating).to_numpy()
            people = estimate_share(passed, labelled["prompt_id"].factorize()[0])
            found = correct_share(predicted, sensitivity, specificity)
            yield CorrectedMean(
                template, metric, "passing", generator, "",
                found.value, *found.interval, people.value, *people.interval, predicted.value, *predicted.interval,
                worth=math.nan, n_rated=people.n, n_scored=predicted.n, note=found.note,
            )  # fmt: skip


def _compute_win_share(sign: Any) -> Any:
    return (sign + 1) / 2


class _AveragedScores(NamedTuple):
    """A metric's mean scores by generator and prompt, with the generators and prompts in the order of the array."""

    generators: list[str]
    prompts: NDArray[np.uint64]  # hashes of the ids, ascending
    scores: Floats  # mean scores (generators, prompts), higher is better; nan if missing

    def average(self, generator: "pd.Series[str]", rows: pd.DataFrame, column: str) -> Floats:
        codes = {name: code for code, name in enumerate(self.generators)}
        prompt = np.searchsorted(self.prompts, hash_ids(rows["prompt_id"].to_list()))
        return compute_mean_matrix(
            self.scores.shape, generator.map(codes).to_numpy(np.int64), prompt, rows[column].to_numpy()
        )


def _average_scores(
    run: RunScores,
    metric: str,
    lower_is_better: Collection[str],
    generators: "pd.Series[str]",
    prompt_ids: "pd.Series[str]",
) -> _AveragedScores:
    """Return the metric's mean scores by generator and prompt, negated if lower scores are better.

    They include the given generators and prompts even if the metric has not scored them.
    """
    columns = run.select_rows(metric).select_scored()
    names = list(dict.fromkeys([*run.generators, *generators]))
    prompts = np.unique(np.concatenate([columns.prompt, hash_ids(prompt_ids.to_list())]))
    scores = get_direction(metric, lower_is_better) * columns.score
    prompt = np.searchsorted(prompts, columns.prompt)
    return _AveragedScores(
        names, prompts, compute_mean_matrix((len(names), len(prompts)), columns.generator, prompt, scores)
    )


def make_rating_rows(
    template: str, metric: str, means: Mapping[str, CombinedEstimate], scores: Mapping[str, Floats]
) -> Iterator[CorrectedMean]:
    """Yield a row for each scored generator, and then for each pair of generators that have enough ratings.

    The metric's own verdict on a pair is based on its original `scores` (prompts,), not on predicted ratings.
    """
    scored = {name: mean for name, mean in means.items() if mean.predicted.prompts}
    complete = [name for name, mean in scored.items() if not mean.note]
    pairs, alone = {}, {}
    for a, b in combinations(complete, 2):
        pairs[a, b] = combine_means((1, -1), (scored[a], scored[b]))
        difference = scores[a] - scores[b]
        alone[a, b] = _estimate_mean(difference, np.isfinite(difference))
    yield from _make_rows(template, metric, "rating", scored, pairs, alone)


def make_choice_rows(
    template: str, metric: str, pairs: Mapping[tuple[str, str], CombinedEstimate]
) -> Iterator[CorrectedMean]:
    """Yield a row with each generator's mean win rate, then a row with the win rate of each pair's first generator."""
    means = {}
    for name in sorted({name for pair in pairs for name in pair}):
        own = {pair: mean for pair, mean in pairs.items() if name in pair}
        weights = [(1 if pair[0] == name else -1) / len(own) for pair in own]
        lost = sum(pair[1] == name for pair in own) / len(own)
        means[name] = combine_means(weights, list(own.values()), lost)
    yield from _make_rows(
        template, metric, "win_rate", means, pairs, {pair: mean.predicted for pair, mean in pairs.items()}
    )


def _make_rows(
    template: str,
    metric: str,
    scale: Scale,
    means: Mapping[str, CombinedEstimate],
    pairs: Mapping[tuple[str, str], CombinedEstimate],
    alone: Mapping[tuple[str, str], Estimate],
) -> Iterator[CorrectedMean]:
    """Yield the estimates as rows (schema CORRECTED_MEANS): first for each generator, then for each pair.

    `alone` has, for each pair, the estimate from the metric alone.
    """
    for name, mean in means.items():
        yield _make_row(template, metric, scale, (name, ""), mean, CONFIDENCE)
    level = 1 - (1 - CONFIDENCE) / max(len(pairs), 1)  # the intervals of pairs are valid simultaneously
    for names, mean in pairs.items():
        row = _make_row(template, metric, scale, names, mean, level)
        better = _find_better_generator(names, row.interval, scale)
        metric_better = _find_better_generator(names, alone[names].interval(level), scale)
        yield row._replace(better=better, metric_better=metric_better)


def _make_row(
    template: str, metric: str, scale: Scale, names: tuple[str, str], mean: CombinedEstimate, level: float
) -> CorrectedMean:
    """Return an estimate for one generator or pair (`names`) as a row of the schema CORRECTED_MEANS.

    If nearly all votes are equal, the metric is ignored, and people's win rate gets an exact interval.
    """
    corrected, people, predicted, note = mean
    interval, of_people, of_metric = (estimate.interval(level) for estimate in (corrected, people, predicted))
    if note:
        exact = scale == "win_rate" and people.prompts >= MIN_LABELS
        wins = people.value * people.prompts
        interval = of_people = (
            compute_exact_interval(wins, people.prompts - wins, level) if exact else UNDEFINED_INTERVAL
        )
    known = not math.isnan(interval.low)
    value = corrected.value if known else math.nan
    worth = (people.error / corrected.error) ** 2 if known and corrected.error else math.nan
    numbers = (value, *interval, people.value, *of_people, predicted.value, *of_metric)
    counts = (people.prompts, predicted.prompts)
    return CorrectedMean(template, metric, scale, *names, *numbers, worth, *counts, note="" if known else note)


def _find_better_generator(names: tuple[str, str], interval: Interval, scale: Scale) -> str:
    """Return the name of the better generator of a pair, or "" if the interval contains the value for a tie.

    The interval is that of the difference between the two generators, or of the first generator's win rate.
    """
    return names[0] if interval.low > EQUAL_VALUES[scale] else names[1] if interval.high < EQUAL_VALUES[scale] else ""
