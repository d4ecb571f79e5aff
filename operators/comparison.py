"""Which generators are told apart: means with intervals and tie groups, and every pair compared on its common
prompts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from evalica import Winner
from evalica import bradley_terry as fit_bradley_terry
from numpy.typing import NDArray

from operators.statistics.ordering import SignedRank, holm, signed_rank
from operators.statistics.poisson import poisson_weights, ratio_intervals
from operators.summary import OVERALL, summarise

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
"""Below it, after Holm's correction over the pairs of one metric and skill, two generators are told apart."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Standing(NamedTuple):
    """A generator's place on one metric's board."""

    generator: str
    metric: str
    skill: str
    mean: float
    """nan where nothing was scored."""
    low: float
    """The mean's 95% interval, bootstrapped over prompts; nan where there are fewer than two."""
    high: float
    n: int
    n_null: int
    coverage: float
    rank: int
    """From 1, by the mean; equal means share a rank."""
    group: str
    """Letters of the tie groups: generators that share one are not told apart."""
    rating: float = math.nan
    """Bradley-Terry rating, overall and where it was asked for."""


class Duel(NamedTuple):
    """Two generators on the prompts that both have a score for."""

    metric: str
    skill: str
    better: str | None
    """The one with the better mean where they are told apart."""
    generator_a: str
    generator_b: str
    difference: float
    """Mean of a less that of b."""
    low: float
    """The difference's 95% interval, bootstrapped over prompts."""
    high: float
    p_value: float
    """Wilcoxon signed-rank, two-sided."""
    p_holm: float
    """Corrected over all pairs of this metric and skill."""
    effect: float
    """Matched-pairs rank-biserial correlation, -1 to 1."""
    win_rate: float
    """Share of prompts won by a, ties half."""
    n: int
    """Prompts; several images of one are averaged."""


def standings(scores: pa.Table, skills: Mapping[str, Sequence[str]], found: Sequence[Duel]) -> list[Standing]:
    """Every metric's board, overall and by skill, best first; `scores` has generator, metric, prompt_id and score.

    `found` are the duels of the same scores, which tell the tie groups.
    """
    told = {
        (duel.metric, duel.skill, frozenset((duel.generator_a, duel.generator_b))): duel.better is not None
        for duel in found
    }
    summary = summarise(scores, skills).to_pandas()
    return [
        standing
        for (metric, skill), rows in summary.groupby(["metric", "skill"], sort=False)
        for standing in _board(str(metric), str(skill), rows, told)
    ]


def _board(
    metric: str, skill: str, rows: pd.DataFrame, told: Mapping[tuple[str, str, frozenset[str]], bool]
) -> Iterator[Standing]:
    names = [str(name) for name in rows["generator"]]
    groups = tie_groups(
        names, {pair: apart for (its, at, pair), apart in told.items() if (its, at) == (metric, skill)}
    )  # fmt: skip
    ranks = rows["mean"].rank(method="min", ascending=False, na_option="bottom").astype(int)
    columns = ["generator", "mean", "low", "high", "n", "n_null", "coverage"]
    for name, mean, low, high, n, n_null, coverage in rows[columns].itertuples(index=False):
        rank = int(ranks[rows["generator"] == name].iloc[0])
        yield Standing(name, metric, skill, mean, low, high, n, n_null, coverage, rank, groups[name])


def tie_groups(names: Sequence[str], told: Mapping[frozenset[str], bool]) -> dict[str, str]:
    """The letters of each name, of names best first: the longest runs in which no two are told apart, a letter each."""
    runs: list[tuple[int, int]] = []
    for first in range(len(names)):
        last = first
        while last + 1 < len(names) and not any(
            told.get(frozenset((names[place], names[last + 1])), False) for place in range(first, last + 1)
        ):
            last += 1
        if not runs or last > runs[-1][1]:
            runs.append((first, last))
    return {
        name: "".join(
            LETTERS[number % len(LETTERS)] for number, (first, last) in enumerate(runs) if first <= place <= last
        )
        for place, name in enumerate(names)
    }


def duels(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> list[Duel]:
    """Every two generators by every metric, overall and at every skill."""
    return [
        duel
        for metric, wide in _by_prompt(scores)
        for skill, prompts in _parts(wide, skills)
        for duel in _compare(metric, skill, prompts)
    ]


def _by_prompt(scores: pa.Table) -> Iterator[tuple[str, pd.DataFrame]]:
    """By metric, the mean score of every prompt (down) and generator (across)."""
    frame = scores.select(["generator", "metric", "prompt_id", "score"]).to_pandas()
    for metric, rows in frame.groupby("metric", sort=False):
        means = rows.dropna(subset=["score"]).groupby(["prompt_id", "generator"])["score"].mean()
        yield str(metric), means.unstack("generator")


def _parts(wide: pd.DataFrame, skills: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The prompts of all, and of each skill."""
    yield OVERALL, wide
    for skill in sorted({skill for its in skills.values() for skill in its} - {OVERALL}):
        mine = wide[[skill in skills.get(prompt, ()) for prompt in wide.index]]
        if len(mine):
            yield skill, mine


def _compare(metric: str, skill: str, wide: pd.DataFrame) -> list[Duel]:
    weights = poisson_weights(list(wide.index)).astype(np.float64)
    found = []
    for a, b in combinations(wide.columns, 2):
        values = wide[[a, b]].to_numpy(np.float64)
        test = signed_rank(values[:, 0], values[:, 1])
        if test.n:
            low, high = _interval(values[:, 0] - values[:, 1], weights)
            found.append(_duel(metric, skill, str(a), str(b), test, low, high))
    corrected = holm([duel.p_value for duel in found])
    return [_decided(duel._replace(p_holm=p)) for duel, p in zip(found, corrected, strict=True)]


def _duel(metric: str, skill: str, a: str, b: str, test: SignedRank, low: float, high: float) -> Duel:
    return Duel(
        metric=metric,
        skill=skill,
        better=None,
        generator_a=a,
        generator_b=b,
        difference=test.difference,
        low=low,
        high=high,
        p_value=test.p_value,
        p_holm=math.nan,
        effect=test.effect,
        win_rate=test.win_rate,
        n=test.n,
    )


def _decided(duel: Duel) -> Duel:
    if not duel.p_holm < SIGNIFICANT or duel.difference == 0:
        return duel
    return duel._replace(better=duel.generator_a if duel.difference > 0 else duel.generator_b)


def _interval(differences: Floats, weights: Floats) -> tuple[float, float]:
    """The interval of the mean of differences (prompts,); nan are left out."""
    both = np.isfinite(differences)
    totals = np.where(both, differences, 0.0)[None, :] @ weights
    low, high = ratio_intervals(totals, both.astype(np.float64)[None, :] @ weights)
    return float(low[0]), float(high[0])


def bradley_terry(scores: pa.Table) -> dict[str, dict[str, float]]:
    """By metric and generator, the Bradley-Terry rating on Elo's scale: 400 points more win ten of eleven prompts.

    Every two generators' images of a prompt are a match, won by the higher score, and one more match of every two
    counts as a draw, so that who never wins has a rating too. Ratings of a metric average 0.
    """
    return {metric: _ratings(wide) for metric, wide in _by_prompt(scores)}


def _ratings(wide: pd.DataFrame) -> dict[str, float]:
    matches = [
        (str(a), str(b), _winner(left, right))
        for a, b in combinations(wide.columns, 2)
        for left, right in [*wide[[a, b]].dropna().itertuples(index=False), (0.0, 0.0)]
    ]
    if not matches:
        return {}
    first, second, winners = zip(*matches, strict=True)
    strengths = fit_bradley_terry(first, second, winners).scores
    ratings = 400 * np.log10(strengths)
    return {str(name): float(value) for name, value in (ratings - ratings.mean()).items()}


def _winner(left: float, right: float) -> Winner:
    if left == right:
        return Winner.Draw
    return Winner.X if left > right else Winner.Y
