"""Which generators are told apart: every pair compared on its common prompts, and boards of means with who leads."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.spilled import ALL, Spilled
from plumbline.operators.images.generation_settings import Difference, Known, differences
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns, among
from plumbline.operators.results.summary import OVERALL, Skills, best_first
from plumbline.operators.statistics.compact_letters import compact_letters
from plumbline.operators.statistics.ordering import (
    SignedRank,
    fewest_pairs,
    holm,
    pairs_needed,
    signed_rank_of,
)
from plumbline.operators.statistics.poisson_bootstrap import (
    PROMPTS_AT_ONCE,
    RESAMPLES,
    poisson_weights,
    ratio_intervals,
)
from plumbline.operators.statistics.rounding import merge_equal, round_to, step_of, sums_in_any_order

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
"""Below it, after Holm's correction over the pairs of one metric and skill, two generators are told apart."""


BETTER, WORSE, TIED, UNLIKE = MARKS = ("better", "worse", "tied", "other settings")
"""How generators stand beside a baseline: clearly better, clearly worse, not told from it, or not compared with it."""


class Standing(NamedTuple):
    """A generator's place on one metric's board."""

    generator: str
    metric: str
    skill: str
    mean: float
    """nan where nothing was scored."""
    low: float
    """The mean's 95% interval, bootstrapped over prompts; nan where too few differ for one to hold."""
    high: float
    n: int
    n_null: int
    coverage: float
    rank: int | None
    """From 1, the best mean; equal means share a rank; None where nothing was scored."""
    group: str
    """Letters of the tie groups: two generators share one exactly where they are compared and no duel tells them
    apart; beside a baseline one of MARKS; empty where nothing was scored, or settings let it be compared with no other.
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
    """The difference's 95% interval, bootstrapped over prompts; nan where too few prompts differ for one to hold."""
    high: float
    p_value: float
    """Wilcoxon signed-rank, two-sided."""
    p_holm: float
    """Corrected over all pairs of this metric and skill; nan of those that are unlike."""
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
    unlike: tuple[Difference, ...] = ()
    """The settings in which the two differ: they are not told apart, and not counted by the correction."""

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
            unlike=tuple(difference.turned() for difference in self.unlike),
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
    unlike: tuple[Duel, ...] = ()
    """Those that are none: of generators with different settings, which are not compared."""

    @property
    def lower_is_better(self) -> bool:
        """Whether the best mean is the lowest."""
        return any(standing.direction < 0 for standing in self.standings)

    @property
    def pairs_wanted(self) -> int:
        """How many pairs of generators are to be compared."""
        scored = generators_of(self.scored())
        every = math.comb(len(scored), 2) if not self.baseline else len({*scored} - {self.baseline})
        return every - len(self.unlike)

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

    def unlike_to(self, generator: str) -> list[str]:
        """The generators that are not compared with this, as their settings differ."""
        pairs = [(duel.generator_a, duel.generator_b) for duel in self.unlike]
        return [b if a == generator else a for a, b in pairs if generator in (a, b)]

    @property
    def why_no_duel(self) -> str:
        """Why no two generators are compared."""
        return "their settings differ." if self.unlike else "none share a prompt that it scored."

    def tied_with(self, generator: str) -> list[str]:
        """The scored generators that are not told apart from this, best mean first; beside a baseline those that are
        compared.
        """
        apart = {generator, *self.better_than(generator), *self.worse_than(generator), *self.unlike_to(generator)}
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
    """Return the boards by metric and skill, in the order of the standings."""
    ranked = defaultdict[tuple[str, str], list[Standing]](list)
    compared = defaultdict[tuple[str, str], list[Duel]](list)
    unlike = defaultdict[tuple[str, str], list[Duel]](list)
    for standing in standings:
        ranked[standing.metric, standing.skill].append(standing)
    for duel in duels:
        (unlike if duel.unlike else compared)[duel.metric, duel.skill].append(duel)
    return {
        place: Board(*place, tuple(sorted(rows, key=_rank_key)), tuple(compared[place]), baseline, tuple(unlike[place]))
        for place, rows in ranked.items()
    }


def _rank_key(standing: Standing) -> tuple[float, str]:
    return -float(f"{standing.worth:.9g}") if standing.n else math.inf, standing.generator


def standings(
    summary: pa.Table, duels: Sequence[Duel], falling: Container[str] = (), baseline: str = ""
) -> list[Standing]:
    """Return every metric's standings from a summary (schema SUMMARY), overall and by skill, best first.

    A lower mean is better by the `falling` metrics. The duels of the same scores decide which generators share a tie
    group, or how they compare with a baseline.
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
    """Yield the standings of one metric and skill from its rows of the summary."""
    if baseline:
        groups = _beside(baseline, duels)
    else:
        groups = _tie_groups([str(name) for name in rows["generator"][rows["n"] > 0]], duels)
    ranks = pd.Series(merge_equal(towards * rows["mean"].to_numpy(np.float64))).rank(method="min", ascending=False)
    columns = ["generator", "metric", "skill", "mean", "low", "high", "n", "n_null", "coverage"]
    for record, rank in zip(rows[columns].to_dict("records"), ranks, strict=True):
        place = None if math.isnan(rank) else int(rank)
        yield Standing(**record, rank=place, group=groups.get(record["generator"], ""), direction=towards)


def _tie_groups(generators: Sequence[str], duels: Sequence[Duel]) -> dict[str, str]:
    """Letters; none of a generator that is compared with no other, as all their settings differ from its own."""
    apart = {frozenset((duel.generator_a, duel.generator_b)) for duel in duels if duel.better or duel.unlike}
    unlike, compared = (
        {name for duel in duels if bool(duel.unlike) == differs for name in (duel.generator_a, duel.generator_b)}
        for differs in (True, False)
    )
    return compact_letters([name for name in generators if name not in unlike - compared], apart)


def _beside(baseline: str, duels: Sequence[Duel]) -> dict[str, str]:
    """By generator, how it stands beside the baseline; the baseline itself has no mark."""
    others = {({duel.generator_a, duel.generator_b} - {baseline}).pop(): duel for duel in duels}
    marks = {None: TIED, baseline: WORSE}
    return {name: UNLIKE if duel.unlike else marks.get(duel.better, BETTER) for name, duel in others.items()}


class PromptMeans:
    """The mean score by a metric of every prompt and generator, on disk by generator."""

    def __init__(self, prompts: Hashes) -> None:
        """`prompts` are the hashes of the ids, ascending."""
        self.prompts = prompts
        self._columns = Spilled()
        self._place_of: dict[str, int] = {}

    def add(self, generator: str, means: Floats) -> None:
        """Those of a generator's prompts, nan where there is none; none of a generator that has no score at all."""
        if np.isfinite(means).any():
            self._place_of[generator] = len(self._columns)
            self._columns.append(means)

    @property
    def generators(self) -> list[str]:
        """Those that have a score, by name."""
        return sorted(self._place_of)

    def of(self, generator: str, part: slice = ALL) -> Floats:
        """Those of a generator, or of a run of its prompts."""
        return self._columns.read(self._place_of[generator], part)

    def pairs(self, baseline: str = "") -> list[tuple[str, str]]:
        """Every two generators, or every other one and the baseline."""
        return [pair for pair in combinations(self.generators, 2) if not baseline or baseline in pair]


def mean_of_each(prompts: Hashes, columns: ScoreColumns) -> Floats:
    """Return one generator's mean score for each prompt, whose hashes ascend; nan for a prompt without a score."""
    place = among(columns.prompt, prompts)
    scored = np.isfinite(columns.score) & (place >= 0)
    place, score = (place, columns.score) if scored.all() else (place[scored], columns.score[scored])
    counts = np.bincount(place, minlength=len(prompts))
    totals = sums_in_any_order(score, place, len(prompts))
    return np.asarray(np.divide(totals, counts, out=np.full(len(prompts), math.nan), where=counts > 0))


def prompt_means(scores: RunScores, metric: str) -> PromptMeans:
    """Those by a metric of a run."""
    means = PromptMeans(scores.prompts)
    for generator, columns in scores.by_generator(metric):
        means.add(generator, mean_of_each(scores.prompts, columns))
    return means


def duels(
    metric: str,
    means: PromptMeans,
    skills: Skills,
    falling: Container[str] = (),
    baseline: str = "",
    settings: Mapping[str, Known] = MappingProxyType({}),
) -> list[Duel]:
    """Compare every two generators by a metric, overall and at every skill, or every other generator and the baseline.

    A lower score is better by `falling` metrics. Generators whose `settings` differ are never told apart.
    """
    towards = direction(metric, falling)
    pairs = means.pairs(baseline)
    if not pairs:
        return []
    having = dict(skills.each(means.prompts))
    tests: dict[str, list[SignedRank]] = {skill: [] for skill in having}
    for a, b in pairs:
        of_a, of_b = means.of(a), means.of(b)
        apart, step = towards * (of_a - of_b), step_of(of_a, of_b)
        for skill, has_it in having.items():
            tests[skill].append(signed_rank_of(apart if skill == OVERALL else apart[has_it], step))
    sums = _interval_sums(means, having, pairs)
    found = [duel for skill in having for duel in _duels(metric, skill, towards, pairs, tests[skill], sums[skill])]
    unlike = {(a, b): tuple(differences(settings.get(a, {}), settings.get(b, {}))) for a, b in pairs}
    return decided([duel._replace(unlike=unlike[duel.generator_a, duel.generator_b]) for duel in found])


def decided(
    undecided: Sequence[Duel], family: Callable[[Duel], Hashable] = lambda duel: (duel.metric, duel.skill)
) -> list[Duel]:
    """The duels corrected among those of a family, and decided by that; those of unlike generators are left open."""
    tested = defaultdict[Hashable, list[int]](list)
    for place, duel in enumerate(undecided):
        if not duel.unlike:
            tested[family(duel)].append(place)
    found = list(undecided)
    for places in tested.values():
        corrected = holm([undecided[place].p_value for place in places])
        for place, p_holm in zip(places, corrected, strict=True):
            duel = undecided[place]._replace(p_holm=p_holm)
            found[place] = duel._replace(better=duel.favoured if p_holm < SIGNIFICANT else None)
    return found


def _duels(
    metric: str,
    skill: str,
    towards: int,
    pairs: Sequence[tuple[str, str]],
    tests: Sequence[SignedRank],
    sums: Floats,
) -> Iterator[Duel]:
    """Yield an undecided duel for each pair with a prompt in common.

    `sums` are the weighted totals and counts of the pairs (2, pairs, k).
    """
    compared = [place for place, test in enumerate(tests) if test.n]
    intervals = ratio_intervals(*sums[:, compared])
    for place, low, high in zip(compared, *intervals.tolist(), strict=True):
        (a, b), test = pairs[place], tests[place]
        yield Duel(
            metric=metric,
            skill=skill,
            better=None,
            generator_a=a,
            generator_b=b,
            low=low if test.differing else math.nan,  # not the rounding of a sum less a sum
            high=high if test.differing else math.nan,
            p_holm=math.nan,
            direction=towards,
            **test._replace(difference=towards * test.difference)._asdict(),
        )


def _interval_sums(
    means: PromptMeans, having: Mapping[str, NDArray[np.bool_]], pairs: Sequence[tuple[str, str]]
) -> dict[str, Floats]:
    """By skill the pairs' differences and the prompts that have them, summed by the bootstrap's weights (2, pairs,
    RESAMPLES); `having` says which prompts have it. A prompt's weights are drawn once for all skills.
    """
    names = means.generators
    first, second = np.array([[names.index(a), names.index(b)] for a, b in pairs], np.intp).T
    sums = np.zeros((len(having), 2, len(pairs), RESAMPLES))
    for begin in range(0, len(means.prompts), PROMPTS_AT_ONCE):
        part = slice(begin, begin + PROMPTS_AT_ONCE)
        values = np.stack([means.of(name, part) for name in names])
        weights = poisson_weights(means.prompts[part]).astype(np.float64)
        _add_pairs(sums, values, np.stack([has_it[part] for has_it in having.values()]), weights, first, second)
    return dict(zip(having, sums, strict=True))


def _add_pairs(
    sums: Floats,
    values: Floats,
    having: NDArray[np.bool_],
    weights: Floats,
    first: NDArray[np.intp],
    second: NDArray[np.intp],
) -> None:
    """Adds to the sums (skills, 2, pairs, resamples) those of some prompts: values (k, prompts), which of the prompts
    have a skill (skills, prompts), and weights (prompts, resamples). Pairs are of the k.

    Where all have a value, a sum of differences is the difference of two sums, so that k are made and not each pair's.
    """
    whole = np.asarray(np.isfinite(values).all(axis=0))
    columns = np.vstack([np.where(whole, values, 0.0), whole])
    totals = (having[:, None] * columns).reshape(-1, len(whole)) @ weights
    totals = totals.reshape(len(having), len(columns), -1)
    sums[:, 0] += totals[:, first] - totals[:, second]
    sums[:, 1] += totals[:, -1:]
    if not whole.all():
        apart = values[first][:, ~whole] - values[second][:, ~whole]
        both = np.isfinite(apart)
        known, of_rest = np.stack([np.where(both, apart, 0.0), both]), weights[~whole]
        for place, has_it in enumerate(having[:, ~whole]):
            sums[place] += known[:, :, has_it] @ of_rest[has_it]


def bradley_terry(metric: str, means: PromptMeans, falling: Container[str] = ()) -> dict[str, float]:
    """Return each generator's Bradley-Terry rating by a metric, on Elo's scale: 400 points more win 10 of 11 prompts.

    The images of two generators for a prompt are a match. The better score wins, which is the lower score by `falling`
    metrics. Every two generators get one more match that counts as a draw, so that a generator that never wins has a
    rating too. The ratings of a metric average 0.
    """
    import evalica  # takes a second, and few reports ask for ratings

    towards = direction(metric, falling)
    matches = [
        (a, b, evalica.Winner[winner], float(count))
        for a, b in means.pairs()
        for winner, count in _count_wins(means.of(a), means.of(b), towards).items()
    ]
    if not matches:
        return {}
    first, second, winners, counts = zip(*matches, strict=True)
    ratings = 400 * np.log10(evalica.bradley_terry(first, second, winners, weights=list(counts)).scores)
    return {str(name): float(value) for name, value in (ratings - ratings.mean()).items()}


def _count_wins(a: Floats, b: Floats, towards: int) -> dict[str, int]:
    """Return the number of matches that each of two generators won, and the number of draws plus one."""
    apart = round_to(towards * (a - b), step_of(a, b))
    return {"X": int((apart > 0).sum()), "Y": int((apart < 0).sum()), "Draw": int((apart == 0).sum()) + 1}
