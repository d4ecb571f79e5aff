"""Which generators are told apart: every pair compared on its common prompts, and boards of means with who leads."""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from evalica import Winner
from evalica import bradley_terry as fit_bradley_terry
from numpy.typing import NDArray

from plumbline.operators.metrics.metric import direction
from plumbline.operators.run_scores import NONE, RunScores
from plumbline.operators.statistics.compact_letters import compact_letters
from plumbline.operators.statistics.ordering import fewest_pairs, holm, pairs_needed, signed_rank
from plumbline.operators.statistics.poisson_bootstrap import ratio_intervals, weighted_sums
from plumbline.operators.summary import OVERALL, Skills, best_first

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
"""Below it, after Holm's correction over the pairs of one metric and skill, two generators are told apart."""


BETTER, WORSE, TIED = MARKS = ("better", "worse", "tied")
"""How generators stand beside a baseline: clearly better, clearly worse, or not told from it."""


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
    """From 1, the best mean; equal means share a rank; None where nothing was scored."""
    group: str
    """Letters of the tie groups: two generators share one exactly where no duel tells them apart; beside a baseline one
    of MARKS; empty where nothing was scored.
    """
    rating: float | None = None
    """Bradley-Terry rating, overall and where it was asked for."""
    direction: int = 1
    """1 where a higher mean is better, -1 where a lower one is."""

    @property
    def worth(self) -> float:
        """The mean so turned that more is better."""
        return self.direction * self.mean

    @property
    def ends(self) -> tuple[float, float]:
        """The mean's interval as it is drawn: of no length where there is none."""
        return (self.low, self.high) if math.isfinite(self.low) else (self.mean, self.mean)


def generators_of(standings: Iterable[Standing]) -> list[str]:
    """Whose they are, in their order."""
    return [standing.generator for standing in standings]


class Duel(NamedTuple):
    """Two generators on the prompts that both have a score for."""

    metric: str
    skill: str
    better: str | None
    """The generator that the signed ranks favour, where they tell the two apart."""
    generator_a: str
    generator_b: str
    difference: float
    """Mean of a less that of b, as the metric gives them: how far apart they are, where `effect` says which is
    better.
    """
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
    differing: int
    """Those of them on which the two differ."""
    direction: int = 1
    """1 where a higher score is better, -1 where a lower one is."""

    @property
    def favoured(self) -> str:
        """The generator that the signed ranks favour, told apart or not."""
        return self.generator_a if self.effect > 0 else self.generator_b

    def prompts_needed(self, comparisons: int) -> int:
        """About how many prompts, more than there were, would tell the two apart among so many comparisons, if they
        differ as it seems.
        """
        needed = pairs_needed(self.effect, comparisons, SIGNIFICANT) * self.n / self.differing
        return max(math.ceil(needed), self.n + 1)

    @property
    def worse(self) -> str | None:
        """The other generator, where they are told apart."""
        if self.better is None:
            return None
        return self.generator_b if self.better == self.generator_a else self.generator_a

    @property
    def is_contrary(self) -> bool:
        """Whether a clear difference is not also one of the means, in its direction."""
        return self.better is not None and self.direction * self.difference * self.effect <= 0

    def turned(self) -> "Duel":
        """The same, seen from the other generator."""
        return self._replace(
            generator_a=self.generator_b, generator_b=self.generator_a, difference=-self.difference,
            low=-self.high, high=-self.low, effect=-self.effect, win_rate=1 - self.win_rate,
        )  # fmt: skip


class Board(NamedTuple):
    """One metric's standings at one skill, and its duels, which alone say who is better than whom."""

    metric: str
    skill: str
    standings: tuple[Standing, ...]
    """Best mean first; those without a score last."""
    duels: tuple[Duel, ...]
    baseline: str = ""
    """The generator that the others are compared with, and with nobody else; empty where all are with each other."""

    @property
    def lower_is_better(self) -> bool:
        """Whether the best mean is the lowest."""
        return any(standing.direction < 0 for standing in self.standings)

    @property
    def pairs_wanted(self) -> int:
        """How many pairs of generators are to be compared."""
        scored = generators_of(self.scored())
        return math.comb(len(scored), 2) if not self.baseline else len({*scored} - {self.baseline})

    @property
    def fewest_prompts(self) -> int:
        """On how many prompts two generators must be compared for any outcome to tell them apart."""
        return fewest_pairs(len(self.duels), SIGNIFICANT)

    @property
    def can_tell(self) -> bool:
        """Whether any outcome on these prompts would have told two generators apart."""
        return any(duel.n >= self.fewest_prompts for duel in self.duels)

    def clearest(self) -> Duel | None:
        """The surest of the differences, told apart or not; None where there is none."""
        differing = [duel for duel in self.duels if duel.effect]
        return min(differing, key=lambda duel: (duel.p_value, -abs(duel.effect)), default=None)

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
        """The scored generators that are not told apart from this, best mean first; beside a baseline those that are
        compared.
        """
        apart = {generator, *self.better_than(generator), *self.worse_than(generator)}
        others = [standing.generator for standing in self.scored() if standing.generator not in apart]
        return others if self.baseline in ("", generator) else [name for name in others if name == self.baseline]

    def unbeaten(self) -> list[Standing]:
        """The scored generators than which none is clearly better, best mean first; no two are told apart."""
        worse = {duel.worse for duel in self.duels}
        return [standing for standing in self.scored() if standing.generator not in worse]

    def leaders(self) -> list[Standing]:
        """Of the unbeaten generators those that are clearly better than the most others, and than one at least; best
        mean first.
        """
        unbeaten, wins = self.unbeaten(), Counter(duel.better for duel in self.duels)
        most = max((wins[standing.generator] for standing in unbeaten), default=0)
        return [standing for standing in unbeaten if wins[standing.generator] == most > 0]

    def close(self) -> list[Standing]:
        """The other generators that are told apart from no leader, best mean first; none where nobody leads."""
        leaders = [standing.generator for standing in self.leaders()]
        tied = [set(self.tied_with(leader)) for leader in leaders]
        common = set.intersection(*tied) - set(leaders) if tied else set()
        return [standing for standing in self.scored() if standing.generator in common]

    def leading(self) -> frozenset[str]:
        """The leaders and those that are not told from them, where that says anything: not where these are all. Beside
        a baseline those that are clearly better.
        """
        if self.baseline:
            return frozenset(self.better_than(self.baseline))
        first = frozenset(standing.generator for standing in (*self.leaders(), *self.close()))
        return first if len(first) < len(self.scored()) else frozenset()

    def best(self) -> Standing | None:
        """The generator that is clearly better than every other, where there is one."""
        others = len(self.scored()) - 1
        return next((first for first in self.leaders() if 0 < others == len(self.worse_than(first.generator))), None)


def boards(standings: Iterable[Standing], duels: Iterable[Duel], baseline: str = "") -> dict[tuple[str, str], Board]:
    """The boards by metric and skill, in the order of the standings."""
    ranked = defaultdict[tuple[str, str], list[Standing]](list)
    compared = defaultdict[tuple[str, str], list[Duel]](list)
    for standing in standings:
        ranked[standing.metric, standing.skill].append(standing)
    for duel in duels:
        compared[duel.metric, duel.skill].append(duel)
    return {
        place: Board(*place, tuple(sorted(rows, key=_by_worth)), tuple(compared[place]), baseline)
        for place, rows in ranked.items()
    }


def _by_worth(standing: Standing) -> tuple[float, str]:
    return -standing.worth if standing.n else math.inf, standing.generator


def standings(
    summary: pa.Table, duels: Sequence[Duel], falling: Container[str] = (), baseline: str = ""
) -> list[Standing]:
    """Every metric's standings, overall and by skill, best first, of a summary (schema SUMMARY); by the metrics
    `falling` a lower mean is better.

    The duels of the same scores say which generators share a tie group, or how they stand beside a baseline.
    """
    compared = defaultdict[tuple[str, str], list[Duel]](list)
    for duel in duels:
        compared[duel.metric, duel.skill].append(duel)
    return [
        standing
        for (metric, skill), rows in best_first(summary, falling).to_pandas().groupby(["metric", "skill"], sort=False)
        for standing in _ranked(rows, compared[str(metric), str(skill)], direction(str(metric), falling), baseline)
    ]


def _ranked(rows: pd.DataFrame, duels: Sequence[Duel], towards: int, baseline: str) -> Iterator[Standing]:
    """The standings of one metric and skill, of its rows of the summary."""
    if baseline:
        groups = _beside(baseline, duels)
    else:
        apart = {frozenset((duel.generator_a, duel.generator_b)) for duel in duels if duel.better is not None}
        groups = compact_letters([str(name) for name in rows["generator"][rows["n"] > 0]], apart)
    ranks = (towards * rows["mean"]).rank(method="min", ascending=False)
    columns = ["generator", "metric", "skill", "mean", "low", "high", "n", "n_null", "coverage"]
    for record, rank in zip(rows[columns].to_dict("records"), ranks, strict=True):
        place = None if math.isnan(rank) else int(rank)
        yield Standing(**record, rank=place, group=groups.get(record["generator"], ""), direction=towards)


def _beside(baseline: str, duels: Sequence[Duel]) -> dict[str, str]:
    """By generator, how it stands beside the baseline; the baseline itself has no mark."""
    others = {({duel.generator_a, duel.generator_b} - {baseline}).pop(): duel.better for duel in duels}
    marks = {None: TIED, baseline: WORSE}
    return {name: marks.get(better, BETTER) for name, better in others.items()}


def duels(
    scores: RunScores, metrics: Iterable[str], skills: Skills, falling: Container[str] = (), baseline: str = ""
) -> list[Duel]:
    """Every two generators by each of the metrics, overall and at every skill, or every other one and the baseline; by
    those `falling` a lower score is better.
    """
    return [
        duel
        for metric in metrics
        for skill, prompts in by_skill(prompt_means(scores, metric), skills)
        for duel in compare_columns(metric, skill, prompts, direction(metric, falling), baseline)
    ]


def prompt_means(scores: RunScores, metric: str) -> pd.DataFrame:
    """The mean score by a metric of every prompt (down, by the hash of its id) and generator (across), where there are
    any.
    """
    columns = scores.of(metric)
    scored = np.isfinite(columns.score) & (columns.prompt != NONE)
    if not scored.all():
        columns = columns.where(scored)
    prompts, place = np.unique(columns.prompt, return_inverse=True)
    cell = place * len(scores.generators) + columns.generator
    shape = (len(prompts), len(scores.generators))
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    totals = np.bincount(cell, weights=columns.score, minlength=shape[0] * shape[1]).reshape(shape)
    means = np.divide(totals, counts, out=np.full(shape, np.nan), where=counts > 0)
    across = sorted(np.flatnonzero(counts.any(axis=0)), key=lambda generator: scores.generators[generator])
    return pd.DataFrame(means[:, across], pd.Index(prompts), [scores.generators[generator] for generator in across])


def by_skill(means: pd.DataFrame, skills: Skills) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of all prompts, and of each skill's."""
    for skill, has_it in skills.each(means.index.to_numpy()):
        if skill == OVERALL:
            yield OVERALL, means
        elif has_it.any():
            yield skill, means[has_it]


def compare_columns(metric: str, skill: str, means: pd.DataFrame, towards: int = 1, baseline: str = "") -> list[Duel]:
    """Every two columns of a frame of means by prompt's hash, or those with the baseline; `towards` is the metric's
    direction.
    """
    values, names = means.to_numpy(np.float64), [str(name) for name in means.columns]
    every = combinations(range(len(names)), 2)
    pairs = [(a, b) for a, b in every if not baseline or baseline in (names[a], names[b])]
    tests = [signed_rank(towards * values[:, a], towards * values[:, b]) for a, b in pairs]
    compared = [(pair, test) for pair, test in zip(pairs, tests, strict=True) if test.n]
    intervals = _intervals(means.index.to_numpy(), values, [pair for pair, _ in compared])
    corrected = holm([test.p_value for _, test in compared])
    return [
        _decided(
            Duel(
                metric=metric,
                skill=skill,
                better=None,
                generator_a=names[a],
                generator_b=names[b],
                low=float(low),
                high=float(high),
                p_holm=p_holm,
                direction=towards,
                **test._replace(difference=towards * test.difference)._asdict(),
            )
        )
        for ((a, b), test), low, high, p_holm in zip(compared, *intervals, corrected, strict=True)
    ]


def _decided(duel: Duel) -> Duel:
    if not duel.p_holm < SIGNIFICANT:
        return duel
    return duel._replace(better=duel.favoured)


def _intervals(prompts: NDArray[np.uint64], values: Floats, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Low and high ends (2, pairs) of the mean differences of pairs of columns (prompts, k); nan are left out."""
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T

    def differences(part: slice) -> Floats:
        apart = values[part][:, first] - values[part][:, second]
        both = np.isfinite(apart)
        return np.hstack([np.where(both, apart, 0.0), both])

    sums = weighted_sums(prompts, differences)
    return ratio_intervals(sums[: len(pairs)], sums[len(pairs) :])


def bradley_terry(
    scores: RunScores, metrics: Iterable[str], falling: Container[str] = ()
) -> dict[str, dict[str, float]]:
    """By metric and generator, the Bradley-Terry rating on Elo's scale: 400 points more win ten of eleven prompts.

    Every two generators' images of a prompt are a match, won by the better score, by the metrics `falling` the lower
    one, and one more match of every two counts as a draw, so that who never wins has a rating too. Ratings of a metric
    average 0.
    """
    return {metric: _ratings(direction(metric, falling) * prompt_means(scores, metric)) for metric in metrics}


def _ratings(means: pd.DataFrame) -> dict[str, float]:
    matches = [
        (str(a), str(b), winner, float(count))
        for a, b in combinations(means.columns, 2)
        for winner, count in _won(means[a].to_numpy(), means[b].to_numpy())
    ]
    if not matches:
        return {}
    first, second, winners, counts = zip(*matches, strict=True)
    ratings = 400 * np.log10(fit_bradley_terry(first, second, winners, weights=list(counts)).scores)
    return {str(name): float(value) for name, value in (ratings - ratings.mean()).items()}


def _won(a: Floats, b: Floats) -> Iterator[tuple[Winner, int]]:
    """How many matches of two generators each has won, and how many are drawn, with the one more."""
    yield Winner.X, int((a > b).sum())
    yield Winner.Y, int((a < b).sum())
    yield Winner.Draw, int((a == b).sum()) + 1
