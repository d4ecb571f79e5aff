"""Means of people's ratings, and win rates of their choices, over all prompts that a metric scored.

People rate some of the prompts. The metric says of every prompt what they would say, and the rated ones say by how much
it is off, for each generator by itself: prediction-powered inference (statistics/prediction_powered.py), where what is
predicted is fitted on other prompts than it is used for (Zrnic and Candès 2024, Cross-prediction-powered inference).
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

from plumbline.operators.judging.matching import as_scored, metric_columns
from plumbline.operators.judging.preferences import PREFERENCE_SIGNS, majority_votes, of_side
from plumbline.operators.judging.ratings import mean_ratings
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.bootstrap import UNDEFINED, Interval
from plumbline.operators.statistics.levels import CONFIDENCE
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.statistics.prediction_powered import (
    FEWEST_DIFFERENT,
    FEWEST_LABELS,
    different,
    enough,
    powered_mean,
    widening,
)

Floats = NDArray[np.float64]

FOLDS = 5
"""Parts of the rated prompts; what people say of one is predicted from the other parts."""
ROUNDING = 1e-20
"""Of a variance to the mean square: below it scores are all alike."""
Scale = Literal["rating", "win_rate", "passing"]
EVEN: Mapping[Scale, float] = {"rating": 0.0, "win_rate": 0.5}
"""Where neither of two generators is better: their difference of ratings, or how often the first wins."""


class CorrectedMean(NamedTuple):
    """A row of schema CORRECTED."""

    template: str
    metric: str
    scale: Scale
    generator: str
    other: str
    """Empty where it is of one generator."""
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
    better: str
    metric_better: str
    note: str

    @property
    def interval(self) -> Interval:
        """Of what is corrected."""
        return Interval(self.low, self.high)


class Estimate(NamedTuple):
    """A mean over prompts."""

    value: float
    shares: Floats
    """Contribution of each prompt (prompts,) to the error, whose square is the sum of their squares."""
    prompts: int
    """Number of prompts that the mean is over."""

    @property
    def error(self) -> float:
        """The standard error, widened a little for the fitted parameters."""
        return math.sqrt(float(self.shares @ self.shares)) * float(widening(self.prompts))

    def interval(self, level: float) -> Interval:
        """Return Student's interval; it is undefined for fewer than three prompts, or if nearly all are the same."""
        if self.prompts < 3 or int(different(self.shares[self.shares != 0])) < FEWEST_DIFFERENT:
            return UNDEFINED
        far = float(scipy.special.stdtrit(self.prompts - 1, (1 + level) / 2)) * self.error
        return Interval(self.value - far, self.value + far)


class Corrected(NamedTuple):
    """A mean by people and a metric together, by people alone and by the metric alone."""

    corrected: Estimate
    people: Estimate
    predicted: Estimate
    note: str = ""
    """Why nothing is said of the first, where nothing is."""


class Said(NamedTuple):
    """What is said of the prompts of one generator, or of two; each (prompts,), nan where nothing is."""

    labels: Floats
    """By people, of the rated images."""
    beside: Floats
    """By the metric of the same images, as people would say it."""
    others: Floats
    """Likewise of the prompts that nobody rated."""


def correct(said: Said) -> Corrected:
    """The mean over all prompts, of which the rated ones are taken for drawn by chance."""
    rated, other = np.isfinite(said.labels), np.isfinite(said.others)
    labels, beside, others = said.labels[rated], said.beside[rated], said.others[other]
    people, predicted = _mean(said.labels, rated), _mean(np.where(rated, said.beside, said.others), rated | other)
    if not enough(labels):
        return Corrected(people, people, predicted, _why_not(labels))
    if len(others) < 2:  # all are rated: there is nothing that the metric could add
        return Corrected(people, people, predicted)
    found = powered_mean(labels, beside, others)
    power, shares = float(found.power), np.zeros(len(rated))
    residuals = labels - power * beside
    shares[rated] = (residuals - residuals.mean()) / len(labels)
    shares[other] = power * (others - others.mean()) / len(others)
    return Corrected(Estimate(float(found.estimate), shares, len(labels)), people, predicted)


def _mean(values: Floats, known: NDArray[np.bool_]) -> Estimate:
    shares, n = np.zeros(len(values)), int(known.sum())
    value = float(values[known].mean()) if n else math.nan
    shares[known] = (values[known] - value) / max(n, 1)
    return Estimate(value, shares, n)


def _why_not(labels: Floats) -> str:
    if len(labels) < FEWEST_LABELS:
        return f"not enough ratings: {len(labels)} prompts, of {FEWEST_LABELS} that are wanted"
    alike = len(labels) - int(different(labels))
    return f"not enough ratings that differ: {alike} of {len(labels)} prompts are rated alike"


def combine(weights: Sequence[float], means: Sequence[Corrected], start: float = 0.0) -> Corrected:
    """`start` and the weighted sum of means over the same prompts."""

    def total(estimates: Sequence[Estimate]) -> Estimate:
        values = [weight * one.value for weight, one in zip(weights, estimates, strict=True)]
        shares = [weight * one.shares for weight, one in zip(weights, estimates, strict=True)]
        return Estimate(start + sum(values), np.sum(shares, axis=0), min(one.prompts for one in estimates))

    return Corrected(
        corrected=total([mean.corrected for mean in means]),
        people=total([mean.people for mean in means]),
        predicted=total([mean.predicted for mean in means]),
        note=next((mean.note for mean in means if mean.note), ""),
    )


def predict(labels: Floats, beside: Floats, others: Floats) -> list[Said]:
    """By generator, what people would say by scores (generators, prompts): on one line for all generators.

    A rated prompt is predicted by the line of the other folds, the others by the mean of these lines.
    """
    rated = np.isfinite(labels).any(axis=0)
    fold = np.where(rated, (np.cumsum(rated) - 1) % FOLDS, -1)
    lines = np.array([_line(*(of[:, rated & (fold != one)] for of in (beside, labels))) for one in range(FOLDS)])
    slope, height = lines[fold].T
    mean_slope, mean_height = np.nanmean(lines, axis=0)
    return list(map(Said, labels, slope * beside + height, mean_slope * others + mean_height))


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope, and height at 0, of the line through the known points (generators, prompts).

    The slope is of prompts within a generator, so that whom a metric flatters does not bend it, and 0 at least: a
    metric that goes against people is not followed.
    """
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return math.nan, math.nan
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    dx, dy = (np.where(known, of - np.where(known, of, 0).sum(axis=1, keepdims=True) / count, 0) for of in (x, y))
    spread = float((dx**2).sum())
    varies = spread > ROUNDING * float((x[known] ** 2).sum())
    slope = max(float((dx * dy).sum()) / spread, 0.0) if varies else 0.0
    return slope, float(y[known].mean() - slope * x[known].mean())


def correct_ratings(
    ratings: pa.Table, scores: pa.Table, run: RunScores, match: Match, falling: Collection[str]
) -> list[CorrectedMean]:
    """Every generator's mean rating, and every two generators' difference, by template and metric.

    `scores` are those of rated images, with their signs turned where lower is better (`falling`), `run` all there are.
    """
    human = as_scored(mean_ratings(ratings, match), scores, match).dropna(subset=["generator"])
    found: list[CorrectedMean] = []
    for metric, column in metric_columns(scores, match).items():
        rated = human.join(column.rename("score"), on=list(MATCH_COLUMNS[match])).dropna(subset=["score"])
        everything = _averaged(run, metric, falling, rated["generator"], rated["prompt_id"])
        for template, rows in rated.groupby("template", sort=False, dropna=False):
            labels, beside = (everything.means(rows["generator"], rows, column) for column in ("human", "score"))
            said = predict(labels, beside, np.where(np.isfinite(labels), math.nan, everything.scores))
            means = dict(zip(everything.generators, map(correct, said), strict=True))
            found += rating_rows(str(template), metric, means, dict(zip(means, everything.scores, strict=True)))
    return found


def correct_choices(
    preferences: pa.Table, scores: pa.Table, run: RunScores, match: Match, falling: Collection[str]
) -> list[CorrectedMean]:
    """How often every generator wins, and every one of two that people compared, by most raters, template and metric.

    What nobody wins counts half, by people and by the metric. Arguments as for correct_ratings.
    """
    votes = majority_votes(preferences)
    votes = as_scored(as_scored(votes, scores, match, "a"), scores, match, "b")
    votes = votes.dropna(subset=["generator_a", "generator_b"])
    votes = votes[votes["generator_a"] != votes["generator_b"]]
    first = np.where(votes["generator_a"] < votes["generator_b"], 1, -1)
    votes["vote"] = _share(first * votes["preferred"].map(PREFERENCE_SIGNS).astype("float64"))
    found: list[CorrectedMean] = []
    for metric, column in metric_columns(scores, match).items():
        a, b = (of_side(side, column, votes, match) for side in "ab")
        both = votes.assign(choice=_share(first * np.sign(a - b))).dropna(subset=["choice"])
        names = both[["generator_a", "generator_b"]]
        both = both.assign(generator_a=names.min(axis=1), generator_b=names.max(axis=1))
        everything = _averaged(run, metric, falling, pd.concat([names[name] for name in names]), both["prompt_id"])
        for template, of_template in both.groupby("template", sort=False):
            found += choice_rows(str(template), metric, _correct_pairs(of_template, everything))
    return found


def _correct_pairs(both: pd.DataFrame, everything: "_Averaged") -> dict[tuple[str, str], Corrected]:
    """`both` are pairs with what people (`vote`) and the metric (`choice`) say of the first generator's image."""
    pairs = {}
    for (one, other), rows in both.groupby(["generator_a", "generator_b"]):
        place, against = (everything.generators.index(name) for name in (one, other))
        labels, beside = (everything.means(rows["generator_a"], rows, column)[place] for column in ("vote", "choice"))
        others = _share(np.sign(everything.scores[place] - everything.scores[against]))
        pairs[str(one), str(other)] = correct(Said(labels, beside, np.where(np.isfinite(labels), math.nan, others)))
    return pairs


def _share(sign: Any) -> Any:
    """What a win (1), a defeat (-1) and neither (0) count as."""
    return (sign + 1) / 2


class _Averaged(NamedTuple):
    """One metric's scores, several images of a prompt by one generator averaged."""

    generators: list[str]
    prompts: NDArray[np.uint64]
    """Hashes of their ids, ascending."""
    scores: Floats
    """(generators, prompts), in the direction in which more is better; nan where there is none."""

    def means(self, generator: "pd.Series[str]", rows: pd.DataFrame, column: str) -> Floats:
        """Likewise of a column of rows that name their prompt."""
        place = {name: at for at, name in enumerate(self.generators)}
        prompt = np.searchsorted(self.prompts, hash_ids(rows["prompt_id"].to_list()))
        return _means(self.scores.shape, generator.map(place).to_numpy(np.int64), prompt, rows[column].to_numpy())


def _averaged(
    run: RunScores, metric: str, falling: Collection[str], generators: "pd.Series[str]", prompt_ids: "pd.Series[str]"
) -> _Averaged:
    """Also of these generators and prompts, where people judged them and the metric's run does not name them."""
    columns = run.select_rows(metric).scored()
    every = list(dict.fromkeys([*run.generators, *generators]))
    prompts = np.unique(np.concatenate([columns.prompt, hash_ids(prompt_ids.to_list())]))
    scores = direction(metric, falling) * columns.score
    place = np.searchsorted(prompts, columns.prompt)
    return _Averaged(every, prompts, _means((len(every), len(prompts)), columns.generator, place, scores))


def _means(shape: tuple[int, ...], row: NDArray[Any], column: NDArray[Any], values: Floats) -> Floats:
    """The mean of the values at each place; nan where there is none."""
    sums, counts = np.zeros((2, *shape))
    np.add.at(sums, (row, column), values)
    np.add.at(counts, (row, column), 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


def rating_rows(
    template: str, metric: str, means: Mapping[str, Corrected], scores: Mapping[str, Floats]
) -> Iterator[CorrectedMean]:
    """Every generator that has a score; then the differences of those of which enough is known.

    Whom the metric alone finds better is told by its own `scores` (prompts,), whatever people make of them.
    """
    scored = {name: mean for name, mean in means.items() if mean.predicted.prompts}
    told = [name for name, mean in scored.items() if not mean.note]
    pairs = {(a, b): combine((1, -1), (scored[a], scored[b])) for a, b in combinations(told, 2)}
    differences = {(a, b): scores[a] - scores[b] for a, b in pairs}
    alone = {pair: _mean(values, np.isfinite(values)) for pair, values in differences.items()}
    yield from _rows(template, metric, "rating", scored, pairs, alone)


def choice_rows(template: str, metric: str, pairs: Mapping[tuple[str, str], Corrected]) -> Iterator[CorrectedMean]:
    """Every generator's rate of wins, the mean over those that it was compared with; then the first's of every two."""
    means = {}
    for name in sorted({name for pair in pairs for name in pair}):
        own = {pair: mean for pair, mean in pairs.items() if name in pair}
        weights = [(1 if pair[0] == name else -1) / len(own) for pair in own]
        lost = sum(pair[1] == name for pair in own) / len(own)
        means[name] = combine(weights, list(own.values()), lost)
    yield from _rows(template, metric, "win_rate", means, pairs, {pair: mean.predicted for pair, mean in pairs.items()})


def _rows(
    template: str,
    metric: str,
    scale: Scale,
    means: Mapping[str, Corrected],
    pairs: Mapping[tuple[str, str], Corrected],
    alone: Mapping[tuple[str, str], Estimate],
) -> Iterator[CorrectedMean]:
    """The intervals of pairs hold all together; `alone` has the metric's own difference of each."""
    for name, mean in means.items():
        yield _row((template, metric, scale, name, ""), mean, CONFIDENCE)
    level = 1 - (1 - CONFIDENCE) / max(len(pairs), 1)
    for (a, b), mean in pairs.items():
        names = (template, metric, scale, a, b)
        yield _row(names, mean, level)._replace(metric_better=_better(names, alone[a, b].interval(level)))


def _row(names: tuple[str, str, Scale, str, str], mean: Corrected, level: float) -> CorrectedMean:
    """Where the rated prompts are nearly all alike, a rate of wins is people's alone, by an exact interval."""
    scale = names[2]
    corrected, people, predicted, note = mean
    told, said, alone = (estimate.interval(level) for estimate in (corrected, people, predicted))
    if note:
        exact = scale == "win_rate" and people.prompts >= FEWEST_LABELS
        told = said = _exact(people, level) if exact else UNDEFINED
    known = not math.isnan(told.low)
    value = corrected.value if known else math.nan
    worth = (people.error / corrected.error) ** 2 if known and corrected.error else math.nan
    return CorrectedMean(
        template=names[0], metric=names[1], scale=scale, generator=names[3], other=names[4],
        corrected=value, low=told.low, high=told.high,
        people=people.value, people_low=said.low, people_high=said.high,
        predicted=predicted.value, predicted_low=alone.low, predicted_high=alone.high,
        worth=worth, n_rated=people.prompts, n_scored=predicted.prompts,
        better=_better(names, told), metric_better="", note="" if known else note,
    )  # fmt: skip


def _exact(rate: Estimate, level: float) -> Interval:
    """The interval of Clopper and Pearson for a rate of wins, which holds where nearly all prompts are alike."""
    n, wins, miss = rate.prompts, rate.value * rate.prompts, (1 - level) / 2
    low = float(scipy.special.betaincinv(wins, n - wins + 1, miss)) if wins > 0 else 0.0
    high = float(scipy.special.betaincinv(wins + 1, n - wins, 1 - miss)) if wins < n else 1.0
    return Interval(low, high)


def _better(names: tuple[str, str, Scale, str, str], interval: Interval) -> str:
    *_, scale, generator, other = names
    low, high = interval
    return "" if not other else generator if low > EVEN[scale] else other if high < EVEN[scale] else ""
