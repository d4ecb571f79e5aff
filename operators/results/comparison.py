"""Compares pairs of generators on the prompts for which both have scores, and ranks generators by their means."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.sentences import format_names
from plumbline.operators.base.spilled import ALL_ROWS, SpilledColumns
from plumbline.operators.images.generation_settings import (
    Difference,
    SettingCounts,
    compare_settings,
    describe_differences,
)
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns, find_in_sorted
from plumbline.operators.results.summary import OVERALL, Skills, sort_best_first
from plumbline.operators.statistics.bradley_terry import ELO_PER_UNIT, fit_strengths, make_contrasts
from plumbline.operators.statistics.compact_letters import compact_letters
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.ordering import (
    SignedRank,
    compute_min_pairs,
    compute_signed_rank_test,
    estimate_pairs_needed,
    holm,
)
from plumbline.operators.statistics.poisson_bootstrap import (
    N_RESAMPLES,
    PROMPTS_AT_ONCE,
    compute_ratio_intervals,
    draw_poisson_weights,
)
from plumbline.operators.statistics.rounding import (
    choose_step,
    compute_order_independent_sums,
    merge_equal,
    round_to_step,
)

Floats = NDArray[np.float64]

SIGNIFICANCE_LEVEL = 0.05
"""Two generators differ clearly if the p-value is below this, after Holm's correction over all pairs for the same
metric and skill.
"""


BETTER, WORSE, TIED, UNLIKE = BASELINE_OUTCOMES = ("better", "worse", "tied", "other settings")
"""Outcomes of a comparison with a baseline: clearly better, clearly worse, not clearly different, not compared."""

Outcome = Literal[
    "nothing scored",
    "one scored",
    "not compared",
    "too few prompts",
    "no difference",
    "no leader",
    "best",
    "one leads",
    "several lead",
]
"""Overall result of a leaderboard. `best`: one generator is clearly better than every other. `one leads` or `several
lead`: one or several generators have the most clear wins of all generators without a clear loss. `no leader`: there are
clear wins, but each winner also loses clearly to another generator.
"""


Test = Literal["signed-rank test", "sign-flip test"]
"""Test of whether two generators differ: Wilcoxon's of scores, or the sign-flip test of choices between images."""


class LeaderboardRow(NamedTuple):
    """One generator's mean on one metric and skill, with its interval, rank and tie group."""

    generator: str
    metric: str
    skill: str
    mean: float
    """Mean score, or win rate for a judge's choices between images; nan if no image has a score."""
    low: float
    """Lower end of the mean's 95% interval over prompts; nan if there are too few, or too few differ."""
    high: float
    n: int
    n_null: int
    coverage: float
    rank: int | None
    """Rank of the mean, starting at 1; equal means share a rank. None if no image has a score."""
    group: str
    """Letters of the tie groups: two generators share a letter if and only if they are compared and do not differ
    clearly. With a baseline, one of BASELINE_OUTCOMES. Empty if no image has a score, or if the generator is compared
    with no other generator, because their settings differ.
    """
    rating: float | None = None
    """Bradley-Terry rating over all prompts, if requested."""
    direction: int = 1
    """1 if a higher mean is better, -1 if a lower mean is better."""

    @property
    def worth(self) -> float:
        """The mean, negated if lower is better, so that larger values are better."""
        return self.direction * self.mean

    @property
    def interval_ends(self) -> tuple[float, float]:
        """Both ends of the mean's interval; the mean twice if there is no interval, so that charts can draw it."""
        return (self.low, self.high) if math.isfinite(self.low) else (self.mean, self.mean)


def list_generator_names(rows: Iterable[LeaderboardRow]) -> list[str]:
    return [row.generator for row in rows]


class Duel(NamedTuple):
    """Comparison of two generators, a and b, on the prompts for which both have a score."""

    metric: str
    skill: str
    better: str | None
    """The clearly better generator according to the signed ranks; None if there is no clear difference."""
    generator_a: str
    generator_b: str
    difference: float
    """Mean of a minus mean of b, in the metric's own scale; for choices, win rate of a minus win rate of b. Use it for
    the size of the difference, and `effect` for the direction.
    """
    low: float
    """Lower end of the difference's 95% interval over prompts; nan if there are too few, or too few differ."""
    high: float
    p_value: float
    """Two-sided p-value of Wilcoxon's signed-rank test. For a judge's choices between images (choices.py), it is the
    sign-flip test's, whose null hypothesis is a win rate of 0.5.
    """
    p_holm: float
    """P-value corrected over all pairs for this metric and skill; nan if the generators' settings differ."""
    effect: float
    """Matched-pairs rank-biserial correlation from -1 to 1: the signed-rank statistic, positive if it favours a. For
    choices, prompts are weighted by how far a wins or loses instead of by ranks.
    """
    win_rate: float
    """Fraction of prompts won by a; ties count as half."""
    n: int
    """Number of prompts; the scores of several images of a prompt are averaged."""
    differing: int
    """Number of prompts with different scores."""
    direction: int = 1
    """1 if a higher score is better, -1 if a lower score is better."""
    unlike: tuple[Difference, ...] = ()
    """Generation settings that differ. If there are any, neither generator is called better, and the pair does not
    count in the correction.
    """
    test: Test = "signed-rank test"

    @property
    def favoured(self) -> str:
        """The generator that the signed ranks favour, even if the difference is not clear."""
        return self.generator_a if self.effect > 0 else self.generator_b

    def estimate_prompts_needed(self, comparisons: int) -> int:
        """Estimate how many prompts are needed for this difference to be significant, assuming that it is real.

        `comparisons` is the number of comparisons for which p-values are corrected.
        The result is always greater than the number of prompts that were compared.
        """
        needed = estimate_pairs_needed(self.effect, comparisons, SIGNIFICANCE) * self.n / self.differing
        return max(math.ceil(needed), self.n + 1)

    @property
    def worse(self) -> str | None:
        """The clearly worse generator; None if there is no clear difference."""
        if self.better is None:
            return None
        return self.generator_b if self.better == self.generator_a else self.generator_a

    @property
    def is_contrary(self) -> bool:
        """Return True if the test finds a clear difference, but the means do not differ or differ the other way."""
        return self.better is not None and self.direction * self.difference * self.effect <= 0

    def swap(self) -> "Duel":
        """Return the same comparison with a and b exchanged, and with signs changed accordingly."""
        return self._replace(
            generator_a=self.generator_b, generator_b=self.generator_a, difference=-self.difference,
            low=-self.high, high=-self.low, effect=-self.effect, win_rate=1 - self.win_rate,
            unlike=tuple(difference.swap_sides() for difference in self.unlike),
        )  # fmt: skip


class Board(NamedTuple):
    """One metric's leaderboard for one skill, with the comparisons of generators (duels).

    Only the duels decide which generator is better.
    """

    metric: str
    skill: str
    rows: tuple[LeaderboardRow, ...]
    """Rows sorted from the best mean to the worst; generators without a score come last."""
    duels: tuple[Duel, ...]
    baseline: str = ""
    """The only generator that other generators are compared with; empty if every pair of generators is compared."""
    unlike: tuple[Duel, ...] = ()
    """Pairs of generators with different settings, which are not compared."""

    @property
    def lower_is_better(self) -> bool:
        return any(row.direction < 0 for row in self.rows)

    @property
    def n_possible_pairs(self) -> int:
        """Number of comparisons that there would be if every generator had a score for every prompt."""
        scored = list_generator_names(self.list_scored_rows())
        every = math.comb(len(scored), 2) if not self.baseline else len({*scored} - {self.baseline})
        return every - len(self.unlike)

    @property
    def min_prompts(self) -> int:
        """Minimum number of shared prompts for a clear difference between two generators."""
        return compute_min_pairs(len(self.duels), SIGNIFICANCE_LEVEL)

    @property
    def can_tell(self) -> bool:
        """Return True if at least one pair has enough prompts for a clear difference."""
        return any(duel.n >= self.min_prompts for duel in self.duels)

    @property
    def has_clear_difference(self) -> bool:
        """Return True if any generator is clearly better than another."""
        return any(duel.better is not None for duel in self.duels)

    @property
    def outcome(self) -> Outcome:
        scored, leaders = self.list_scored_rows(), self.list_leaders()
        if len(scored) < 2:
            return "one scored" if scored else "nothing scored"
        if not self.duels:
            return "not compared"
        if not self.can_tell:
            return "too few prompts"
        if not leaders:
            return "no leader" if self.has_clear_difference else "no difference"
        if self.find_best_row() is not None:
            return "best"
        return "one leads" if len(leaders) == 1 else "several lead"

    def find_clearest_duel(self) -> Duel | None:
        """Return the duel with the smallest p-value, significant or not; None if no pair differs."""
        differing = [duel for duel in self.duels if duel.effect]
        return min(differing, key=lambda duel: (duel.p_value, -abs(duel.effect)), default=None)

    def list_scored_rows(self) -> list[LeaderboardRow]:
        return [row for row in self.rows if row.n]

    def list_clearly_better(self, generator: str) -> list[str]:
        return [str(duel.better) for duel in self.duels if duel.worse == generator]

    def list_clearly_worse(self, generator: str) -> list[str]:
        return [str(duel.worse) for duel in self.duels if duel.better == generator]

    def list_uncomparable_generators(self, generator: str) -> list[str]:
        """Return the generators that are not compared with `generator` because their settings differ."""
        pairs = [(duel.generator_a, duel.generator_b) for duel in self.unlike]
        return [b if a == generator else a for a, b in pairs if generator in (a, b)]

    @property
    def no_duel_reason(self) -> str:
        """Return the end of a sentence that states why no generators were compared."""
        return "their settings differ." if self.unlike else "no two have scores for the same prompt."

    def list_tied_generators(self, generator: str) -> list[str]:
        """Return the scored generators that do not differ clearly from `generator`, best mean first.

        With a baseline, only pairs that include the baseline count.
        """
        apart = {
            generator,
            *self.list_clearly_better(generator),
            *self.list_clearly_worse(generator),
            *self.list_uncomparable_generators(generator),
        }
        others = [name for name in list_generator_names(self.list_scored_rows()) if name not in apart]
        return others if self.baseline in ("", generator) else [name for name in others if name == self.baseline]

    def list_unbeaten_rows(self) -> list[LeaderboardRow]:
        """Return the rows of the scored generators that lose no duel clearly, best mean first."""
        worse = {duel.worse for duel in self.duels}
        return [row for row in self.list_scored_rows() if row.generator not in worse]

    def list_leaders(self) -> list[LeaderboardRow]:
        """Return the leaders' rows: the unbeaten rows with the most clear wins, if there are any clear wins."""
        unbeaten, wins = self.list_unbeaten_rows(), Counter(duel.better for duel in self.duels)
        most = max((wins[row.generator] for row in unbeaten), default=0)
        return [row for row in unbeaten if wins[row.generator] == most > 0]

    def list_close_rows(self) -> list[LeaderboardRow]:
        """Return the rows of the generators that do not clearly differ from any leader, best mean first."""
        leaders = list_generator_names(self.list_leaders())
        tied = [set(self.list_tied_generators(leader)) for leader in leaders]
        common = set.intersection(*tied) - set(leaders) if tied else set()
        return [row for row in self.list_scored_rows() if row.generator in common]

    def find_highlighted_generators(self) -> frozenset[str]:
        """Return the leaders and the generators of `list_close_rows`, or none if that would be every scored generator.

        With a baseline, return the generators that are clearly better than the baseline.
        """
        if self.baseline:
            return frozenset(self.list_clearly_better(self.baseline))
        first = frozenset(list_generator_names((*self.list_leaders(), *self.list_close_rows())))
        return first if len(first) < len(self.list_scored_rows()) else frozenset()

    def find_best_row(self) -> LeaderboardRow | None:
        """Return the row of the generator that is clearly better than every other generator, or None."""
        others = len(self.list_scored_rows()) - 1
        return next(
            (first for first in self.list_leaders() if 0 < others == len(self.list_clearly_worse(first.generator))),
            None,
        )

    def leave_out(self, generator: str) -> "Board":
        """Return the leaderboard without the row and the duels of a generator; the others do not change."""
        duels = tuple(duel for duel in self.duels if generator not in (duel.generator_a, duel.generator_b))
        return self._replace(rows=tuple(row for row in self.rows if row.generator != generator), duels=duels)


def build_boards(
    rows: Iterable[LeaderboardRow], duels: Iterable[Duel], baseline: str = ""
) -> dict[tuple[str, str], Board]:
    """Return a leaderboard for each metric and skill, in the order of the rows."""
    ranked = defaultdict[tuple[str, str], list[LeaderboardRow]](list)
    compared = defaultdict[tuple[str, str], list[Duel]](list)
    unlike = defaultdict[tuple[str, str], list[Duel]](list)
    for row in rows:
        ranked[row.metric, row.skill].append(row)
    for duel in duels:
        (unlike if duel.unlike else compared)[duel.metric, duel.skill].append(duel)

    def make_rank_key(row: LeaderboardRow) -> tuple[float, str]:
        # Rounded, so that means that differ only by rounding errors are ordered by name.
        return -float(f"{row.worth:.9g}") if row.n else math.inf, row.generator

    return {
        key: Board(*key, tuple(sorted(own, key=make_rank_key)), tuple(compared[key]), baseline, tuple(unlike[key]))
        for key, own in ranked.items()
    }


def describe_tests(duels: Iterable[Duel]) -> str:
    """Return the name of the test used for the duels, or of both: `signed-rank test (sign-flip test for pairwise)`."""
    metrics_of: dict[Test, dict[str, None]] = {}
    for duel in sorted(duels, key=lambda duel: duel.test, reverse=True):  # the signed-rank test first
        metrics_of.setdefault(duel.test, {})[duel.metric] = None
    first, *others = metrics_of or [Duel._field_defaults["test"]]
    return "".join([first, *(f" ({test} for {format_names(list(metrics_of[test]))})" for test in others)])


def describe_uncompared_pairs(duels: Iterable[Duel]) -> list[str]:
    """Return a text for each pair of generators that was not compared because their settings differ.

    For example, `a and b (20 steps against 30)`.
    """
    pairs = {(duel.generator_a, duel.generator_b): duel.unlike for duel in duels if duel.unlike}
    return [f"{a} and {b} ({describe_differences(unlike)})" for (a, b), unlike in pairs.items()]


def rank_generators(
    summary: pa.Table,
    duels: Sequence[Duel],
    lower_is_better: Container[str] = (),
    baseline: str = "",
    unranked: Container[str] = (),
) -> list[LeaderboardRow]:
    """Return the leaderboard of each metric, overall and by skill, best mean first, from a summary (schema SUMMARY).

    The `duels` must compare the same scores; they determine the tie groups, or the marks against the baseline.
    `unranked` contains the metrics that only describe images; their rows have no rank and no tie group.
    """
    by_board = defaultdict[tuple[str, str], list[Duel]](list)
    for duel in duels:
        by_board[duel.metric, duel.skill].append(duel)
    columns = ["generator", "metric", "skill", "mean", "low", "high", "n", "n_null", "coverage"]
    frames = sort_best_first(summary, lower_is_better).to_pandas()
    board: list[LeaderboardRow] = []
    for (metric, skill), frame in frames.groupby(["metric", "skill"], sort=False):
        own, towards = by_board[str(metric), str(skill)], get_direction(str(metric), lower_is_better)
        groups: dict[str, str] = {}
        if baseline and metric not in unranked:
            others = {({duel.generator_a, duel.generator_b} - {baseline}).pop(): duel for duel in own}
            marks = {None: TIED, baseline: WORSE}
            groups = {name: UNLIKE if duel.unlike else marks.get(duel.better, BETTER) for name, duel in others.items()}
        elif metric not in unranked:
            groups = find_tie_groups([str(name) for name in frame["generator"][frame["n"] > 0]], own)
        ranks = pd.Series(merge_equal(towards * frame["mean"].to_numpy(np.float64))).rank(method="min", ascending=False)
        for record, value in zip(frame[columns].to_dict("records"), ranks, strict=True):
            rank = None if math.isnan(value) or metric in unranked else int(value)
            group = groups.get(record["generator"], "")
            board.append(LeaderboardRow(**record, rank=rank, group=group, direction=towards))
    return board


def find_tie_groups(generators: Sequence[str], duels: Sequence[Duel]) -> dict[str, str]:
    """Return the letters of each generator's tie groups; empty for a generator that is not compared with any other."""
    apart = {frozenset((duel.generator_a, duel.generator_b)) for duel in duels if duel.better or duel.unlike}
    unlike = {name for duel in duels if duel.unlike for name in (duel.generator_a, duel.generator_b)}
    compared = {name for duel in duels if not duel.unlike for name in (duel.generator_a, duel.generator_b)}
    return compact_letters([name for name in generators if name not in unlike - compared], apart)


class PromptMeans:
    """A metric's mean score for each prompt and generator, stored on disk."""

    def __init__(self, prompts: Hashes) -> None:
        """Create the store without any means; `prompts` contains the hashes of the prompt ids in ascending order."""
        self.prompts = prompts
        self._columns = SpilledColumns()
        self._column_of: dict[str, int] = {}

    def add(self, generator: str, means: Floats) -> None:
        """Add a generator's mean for each prompt, with nan for a missing mean; ignore a generator without any mean."""
        if np.isfinite(means).any():
            self._column_of[generator] = len(self._columns)
            self._columns.append(means)

    @property
    def generators(self) -> list[str]:
        """Sorted names of the generators that have a score."""
        return sorted(self._column_of)

    def read(self, generator: str, part: slice = ALL_ROWS) -> Floats:
        """Return a generator's means for all prompts or for a slice of them."""
        return self._columns.read(self._column_of[generator], part)

    def list_pairs(self, baseline: str = "") -> list[tuple[str, str]]:
        """Return all pairs of generators or, with a baseline, only the pairs that include the baseline."""
        return [pair for pair in combinations(self.generators, 2) if not baseline or baseline in pair]


def average_prompts(prompts: Hashes, columns: ScoreColumns) -> Floats:
    """Return one generator's mean score for each prompt (hashes in ascending order); nan if there is no score."""
    place = find_in_sorted(columns.prompt, prompts)
    scored = np.isfinite(columns.score) & (place >= 0)
    place, score = (place, columns.score) if scored.all() else (place[scored], columns.score[scored])
    counts = np.bincount(place, minlength=len(prompts))
    totals = compute_order_independent_sums(score, place, len(prompts))
    return np.asarray(np.divide(totals, counts, out=np.full(len(prompts), math.nan), where=counts > 0))


def read_prompt_means(scores: RunScores, metric: str) -> PromptMeans:
    """Return a metric's mean scores by prompt and generator, read from a run's scores."""
    means = PromptMeans(scores.prompts)
    for generator, columns in scores.iterate_generators(metric):
        means.add(generator, average_prompts(scores.prompts, columns))
    return means


def compare_generators(
    metric: str,
    means: PromptMeans,
    skills: Skills,
    lower_is_better: Container[str] = (),
    baseline: str = "",
    settings: Mapping[str, SettingCounts] = MappingProxyType({}),
) -> list[Duel]:
    """Compare all pairs of generators, or each generator with the baseline, by a metric, overall and for each skill.

    If the `settings` of two generators differ, neither is called better.
    """
    towards = get_direction(metric, lower_is_better)
    pairs = means.list_pairs(baseline)
    if not pairs:
        return []
    masks = dict(skills.iterate_masks(means.prompts))
    tests: dict[str, list[SignedRank]] = {skill: [] for skill in masks}
    for a, b in pairs:
        of_a, of_b = means.read(a), means.read(b)
        apart, step = towards * (of_a - of_b), choose_step(of_a, of_b)
        for skill, mask in masks.items():
            tests[skill].append(compute_signed_rank_test(apart if skill == OVERALL else apart[mask], step))
    unlike = [tuple(compare_settings(settings.get(a, {}), settings.get(b, {}))) for a, b in pairs]
    duels = []
    for skill, sums in _sum_differences(means, masks, pairs).items():
        compared = [pair for pair, test in enumerate(tests[skill]) if test.n]
        intervals = compute_ratio_intervals(*sums[:, compared])
        for pair, low, high in zip(compared, *intervals.tolist(), strict=True):
            (a, b), test = pairs[pair], tests[skill][pair]
            duels.append(
                Duel(
                    metric=metric,
                    skill=skill,
                    better=None,
                    generator_a=a,
                    generator_b=b,
                    low=low if test.differing else math.nan,  # if nothing differs, the interval is only rounding error
                    high=high if test.differing else math.nan,
                    p_holm=math.nan,
                    direction=towards,
                    unlike=unlike[pair],
                    **test._replace(difference=towards * test.difference)._asdict(),
                )
            )
    return decide_duels(duels)


def decide_duels(
    duels: Sequence[Duel], family: Callable[[Duel], Hashable] = lambda duel: (duel.metric, duel.skill)
) -> list[Duel]:
    """Return the duels with p-values corrected within each family (Holm 1979), and with `better` filled in.

    Duels of generators with different settings are undecided.
    """
    families = defaultdict[Hashable, list[int]](list)
    for number, duel in enumerate(duels):
        if not duel.unlike:
            families[family(duel)].append(number)
    decided = [duel._replace(better=None, p_holm=math.nan) for duel in duels]
    for numbers in families.values():
        corrected = holm([duels[number].p_value for number in numbers])
        for number, p_holm in zip(numbers, corrected, strict=True):
            better = duels[number].favoured if p_holm < SIGNIFICANCE_LEVEL else None
            decided[number] = duels[number]._replace(better=better, p_holm=p_holm)
    return decided


def _sum_differences(
    means: PromptMeans, masks: Mapping[str, NDArray[np.bool_]], pairs: Sequence[tuple[str, str]]
) -> dict[str, Floats]:
    """Return each pair's weighted sum of differences and weighted number of prompts, by skill and resample.

    `masks` selects the prompts that have each skill. The bootstrap's weights for a prompt are the same for all skills.
    Each array has the shape (2, pairs, N_RESAMPLES).
    """
    names = means.generators
    first, second = np.array([[names.index(a), names.index(b)] for a, b in pairs], np.intp).T
    sums = np.zeros((len(masks), 2, len(pairs), N_RESAMPLES))
    for begin in range(0, len(means.prompts), PROMPTS_AT_ONCE):
        part = slice(begin, begin + PROMPTS_AT_ONCE)
        values = np.stack([means.read(name, part) for name in names])  # (generators, prompts)
        weights = draw_poisson_weights(means.prompts[part]).astype(np.float64)  # (prompts, resamples)
        having = np.stack([mask[part] for mask in masks.values()])  # (skills, prompts)
        # On prompts for which all generators have a value, a sum of differences is the difference of two sums. So one
        # sum is computed for each generator, and not for each pair.
        whole = np.asarray(np.isfinite(values).all(axis=0))
        columns = np.vstack([np.where(whole, values, 0.0), whole])
        totals = (having[:, None] * columns).reshape(-1, len(whole)) @ weights
        totals = totals.reshape(len(having), len(columns), -1)
        sums[:, 0] += totals[:, first] - totals[:, second]
        sums[:, 1] += totals[:, -1:]
        if not whole.all():
            apart = values[first][:, ~whole] - values[second][:, ~whole]
            both = np.isfinite(apart)
            known, rest = np.stack([np.where(both, apart, 0.0), both]), weights[~whole]
            for skill, mask in enumerate(having[:, ~whole]):
                sums[skill] += known[:, :, mask] @ rest[mask]
    return dict(zip(masks, sums, strict=True))


def compute_bradley_terry(metric: str, means: PromptMeans, lower_is_better: Container[str] = ()) -> dict[str, float]:
    """Return each generator's Bradley-Terry rating for a metric, on Elo's scale.

    An advantage of 400 points means winning 10 of 11 prompts. The images of two generators for the same prompt are a
    match, which the better score wins. Each pair of generators gets an extra match that counts as a draw, so that even
    a generator that never wins has a rating. A metric's ratings have mean 0.
    """
    towards, names, pairs = get_direction(metric, lower_is_better), means.generators, means.list_pairs()
    if not pairs:
        return {}
    wins, counts = np.zeros(len(pairs)), np.zeros(len(pairs))
    for match, (a, b) in enumerate(pairs):
        of_a, of_b = means.read(a), means.read(b)
        apart = round_to_step(towards * (of_a - of_b), choose_step(of_a, of_b))
        draws = int((apart == 0).sum()) + 1
        wins[match] = int((apart > 0).sum()) + draws / 2
        counts[match] = int((apart != 0).sum()) - int(np.isnan(apart).sum()) + draws
    first, second = np.array([[names.index(a), names.index(b)] for a, b in pairs], np.intp).T
    strengths = ELO_PER_UNIT * fit_strengths(make_contrasts(first, second, len(names)), wins, counts)
    return dict(zip(names, strengths.tolist(), strict=True))
