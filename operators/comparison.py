"""Which generators are told apart: every pair compared on its common prompts, and boards of means with who leads."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from evalica import Winner
from evalica import bradley_terry as fit_bradley_terry
from numpy.typing import NDArray

from operators.statistics.letters import compact_letters
from operators.statistics.ordering import holm, signed_rank
from operators.statistics.poisson import poisson_weights, ratio_intervals
from operators.summary import OVERALL, summarise

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
"""Below it, after Holm's correction over the pairs of one metric and skill, two generators are told apart."""


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
    rank: int | None
    """From 1, by the mean; equal means share a rank; None where nothing was scored."""
    group: str
    """Letters of the tie groups: two generators share one exactly where no duel tells them apart; empty where nothing
    was scored.
    """
    rating: float = math.nan
    """Bradley-Terry rating, overall and where it was asked for."""


class Duel(NamedTuple):
    """Two generators on the prompts that both have a score for."""

    metric: str
    skill: str
    better: str | None
    """The generator that the signed ranks favour, where they tell the two apart."""
    generator_a: str
    generator_b: str
    difference: float
    """Mean of a less that of b: how far apart they are, where `effect` says which is better."""
    low: float
    """The difference's 95% interval, bootstrapped over prompts."""
    high: float
    p_value: float
    """Wilcoxon signed-rank, two-sided."""
    p_holm: float
    """Corrected over all pairs of this metric and skill."""
    effect: float
    """Matched-pairs rank-biserial correlation, -1 to 1: the signed-rank statistic, positive where it favours a."""
    win_rate: float
    """Share of prompts won by a, ties half."""
    n: int
    """Prompts; several images of one are averaged."""

    @property
    def worse(self) -> str | None:
        """The other generator, where they are told apart."""
        if self.better is None:
            return None
        return self.generator_b if self.better == self.generator_a else self.generator_a


class Board(NamedTuple):
    """One metric's standings at one skill, and its duels, which alone say who is better than whom."""

    metric: str
    skill: str
    standings: tuple[Standing, ...]
    """Highest mean first; those without a score last."""
    duels: tuple[Duel, ...]

    def scored(self) -> list[Standing]:
        """The standings that have a mean."""
        return [standing for standing in self.standings if standing.n]

    def better_than(self, generator: str) -> list[str]:
        """The generators that are clearly better than this."""
        return [str(duel.better) for duel in self.duels if duel.worse == generator]

    def worse_than(self, generator: str) -> list[str]:
        """The generators that are clearly worse than this."""
        return [str(duel.worse) for duel in self.duels if duel.better == generator]

    def tied_with(self, generator: str) -> list[str]:
        """The scored generators that are not told apart from this, highest mean first."""
        apart = {generator, *self.better_than(generator), *self.worse_than(generator)}
        return [standing.generator for standing in self.scored() if standing.generator not in apart]

    def unbeaten(self) -> list[Standing]:
        """The scored generators than which none is clearly better, highest mean first; no two are told apart."""
        worse = {duel.worse for duel in self.duels}
        return [standing for standing in self.scored() if standing.generator not in worse]

    def leaders(self) -> list[Standing]:
        """Of the unbeaten generators those that are clearly better than the most others, and than one at least; highest
        mean first.
        """
        unbeaten, wins = self.unbeaten(), Counter(duel.better for duel in self.duels)
        most = max((wins[standing.generator] for standing in unbeaten), default=0)
        return [standing for standing in unbeaten if wins[standing.generator] == most > 0]

    def close(self) -> list[Standing]:
        """The other generators that are told apart from no leader, highest mean first; none where nobody leads."""
        leaders = [standing.generator for standing in self.leaders()]
        tied = [set(self.tied_with(leader)) for leader in leaders]
        common = set.intersection(*tied) - set(leaders) if tied else set()
        return [standing for standing in self.scored() if standing.generator in common]

    def best(self) -> Standing | None:
        """The generator that is clearly better than every other, where there is one."""
        others = len(self.scored()) - 1
        return next((first for first in self.leaders() if 0 < others == len(self.worse_than(first.generator))), None)


def boards(standings: Iterable[Standing], duels: Iterable[Duel]) -> dict[tuple[str, str], Board]:
    """The boards by metric and skill, in the order of the standings."""
    ranked = defaultdict[tuple[str, str], list[Standing]](list)
    compared = defaultdict[tuple[str, str], list[Duel]](list)
    for standing in standings:
        ranked[standing.metric, standing.skill].append(standing)
    for duel in duels:
        compared[duel.metric, duel.skill].append(duel)
    return {
        place: Board(*place, tuple(sorted(rows, key=_by_mean)), tuple(compared[place]))
        for place, rows in ranked.items()
    }


def _by_mean(standing: Standing) -> tuple[float, str]:
    return -standing.mean if standing.n else math.inf, standing.generator


def standings(scores: pa.Table, skills: Mapping[str, Sequence[str]], duels: Sequence[Duel]) -> list[Standing]:
    """Every metric's standings, overall and by skill, best first; `scores` has generator, metric, prompt_id and score.

    The duels of the same scores say which generators share a tie group.
    """
    apart = defaultdict[tuple[str, str], set[frozenset[str]]](set)
    for duel in duels:
        if duel.better is not None:
            apart[duel.metric, duel.skill].add(frozenset((duel.generator_a, duel.generator_b)))
    summary = summarise(scores, skills).to_pandas()
    return [
        standing
        for (metric, skill), rows in summary.groupby(["metric", "skill"], sort=False)
        for standing in _ranked(rows, apart[str(metric), str(skill)])
    ]


def _ranked(rows: pd.DataFrame, apart: Collection[frozenset[str]]) -> Iterator[Standing]:
    """The standings of one metric and skill, of its rows of the summary."""
    groups = compact_letters([str(name) for name in rows["generator"][rows["n"] > 0]], apart)
    ranks = rows["mean"].rank(method="min", ascending=False)
    columns = ["generator", "metric", "skill", "mean", "low", "high", "n", "n_null", "coverage"]
    for record, rank in zip(rows[columns].to_dict("records"), ranks, strict=True):
        place = None if math.isnan(rank) else int(rank)
        yield Standing(**record, rank=place, group=groups.get(record["generator"], ""))


def duels(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> list[Duel]:
    """Every two generators by every metric, overall and at every skill."""
    return [
        duel
        for metric, means in prompt_means(scores)
        for skill, prompts in by_skill(means, skills)
        for duel in compare_columns(metric, skill, prompts)
    ]


def prompt_means(scores: pa.Table) -> Iterator[tuple[str, pd.DataFrame]]:
    """By metric, the mean score of every prompt (down) and generator (across)."""
    frame = scores.select(["generator", "metric", "prompt_id", "score"]).to_pandas()
    for metric, rows in frame.groupby("metric", sort=False):
        means = rows.dropna(subset=["score"]).groupby(["prompt_id", "generator"])["score"].mean()
        yield str(metric), means.unstack("generator")


def by_skill(means: pd.DataFrame, skills: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of all prompts, and of each skill's."""
    yield OVERALL, means
    for skill in sorted({skill for names in skills.values() for skill in names} - {OVERALL}):
        prompts = means[[skill in (skills.get(prompt) or ()) for prompt in means.index]]
        if len(prompts):
            yield skill, prompts


def compare_columns(metric: str, skill: str, means: pd.DataFrame) -> list[Duel]:
    """Every two columns of a frame of means by prompt."""
    weights = poisson_weights(list(means.index)).astype(np.float64)
    duels = []
    for a, b in combinations(means.columns, 2):
        values = means[[a, b]].to_numpy(np.float64)
        test = signed_rank(values[:, 0], values[:, 1])
        if test.n:
            low, high = _interval(values[:, 0] - values[:, 1], weights)
            duels.append(
                Duel(
                    metric=metric,
                    skill=skill,
                    better=None,
                    generator_a=str(a),
                    generator_b=str(b),
                    low=low,
                    high=high,
                    p_holm=math.nan,
                    **test._asdict(),
                )
            )
    corrected = holm([duel.p_value for duel in duels])
    return [_decided(duel._replace(p_holm=p)) for duel, p in zip(duels, corrected, strict=True)]


def _decided(duel: Duel) -> Duel:
    if not duel.p_holm < SIGNIFICANT:
        return duel
    return duel._replace(better=duel.generator_a if duel.effect > 0 else duel.generator_b)


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
    return {metric: _ratings(means) for metric, means in prompt_means(scores)}


def _ratings(means: pd.DataFrame) -> dict[str, float]:
    matches = [
        (str(a), str(b), Winner.Draw if left == right else Winner.X if left > right else Winner.Y)
        for a, b in combinations(means.columns, 2)
        for left, right in [*means[[a, b]].dropna().itertuples(index=False), (0.0, 0.0)]
    ]
    if not matches:
        return {}
    first, second, winners = zip(*matches, strict=True)
    ratings = 400 * np.log10(fit_bradley_terry(first, second, winners).scores)
    return {str(name): float(value) for name, value in (ratings - ratings.mean()).items()}
