"""Builds the tables of the report: leaderboard, means by skill, pairs, leaders by skill, and seed noise."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.sentences import FirstRows, ShownTable, format_names, format_number, take_first_rows
from plumbline.operators.results.comparison import Board, Duel, LeaderboardRow, Outcome, list_generator_names
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.repeats import WIDTH_WITH_TWICE_THE_PROMPTS, RepeatVariances

MAX_GENERATORS = 60
MAX_SKILLS = 30
MAX_MATRIX_GENERATORS = 40
MAX_NAMED_COLUMNS = 8
"""Maximum number of matrix columns with names as headings; larger matrices number their columns, like their rows."""
MAX_EFFECT_COLUMNS = 20
"""Maximum number of matrix columns with effects in the cells; larger matrices show only signs."""
MAX_PAIRS = 400


class MeansColumn(NamedTuple):
    """Means of all generators, shown as a column: for one metric in the leaderboard, or for one skill in a heat map."""

    name: str
    by_generator: Mapping[str, LeaderboardRow]
    leading: frozenset[str]
    """Generators to highlight."""
    low: float
    """Lower end of the axis for the means."""
    high: float
    lower_is_better: bool

    @property
    def n_images(self) -> int:
        """Number of images of the generator with the most images, whether scored or not."""
        return max(row.n + row.n_null for row in self.by_generator.values())

    def locate(self, value: float) -> float:
        """Return a value's position on the column's axis, from 0 (low) to 100 (high); 50 if the axis has no length."""
        return 100 * (value - self.low) / (self.high - self.low) if self.high > self.low else 50.0

    def locate_from_worst(self, value: float) -> float:
        """Return a value's position on the column's axis, from 0 at the worse to 100 at the better end."""
        return 100 - self.locate(value) if self.lower_is_better else self.locate(value)


class HeatMap(NamedTuple):
    """Means on one metric, by generator and skill."""

    skills: FirstRows[MeansColumn]
    generators: FirstRows[str]


class PairComparisons(NamedTuple):
    """Comparisons of generators on one metric, as a matrix and as a list."""

    generators: FirstRows[str]
    matrix: Mapping[tuple[str, str], Duel]
    """Comparison for each ordered pair of generators."""
    duels: FirstRows[Duel]


class SkillLeader(NamedTuple):
    """Leader at one skill on one metric, or the reason why no generator leads."""

    note: str
    """Generators that do not differ clearly from the leader, or the reason why no generator leads."""
    generator: str = ""
    """Name of the leader with the best mean; empty if no generator leads."""
    n_tied: int = 0


class SkillLeaders(NamedTuple):
    """For one skill, the leader on each metric, or the reason why there is none."""

    skill: str
    n: int
    leads: list[SkillLeader]


def make_board_column(board: Board) -> MeansColumn:
    """Return a metric's leaderboard column; its axis spans all the intervals."""
    low = min((min(row.interval_ends[0], row.mean) for row in board.list_scored_rows()), default=0.0)
    high = max((max(row.interval_ends[1], row.mean) for row in board.list_scored_rows()), default=1.0)
    return _make_column(board.metric, board, low, high)


def _make_column(name: str, board: Board, low: float, high: float) -> MeansColumn:
    by_generator = {row.generator: row for row in board.rows}
    return MeansColumn(name, by_generator, board.find_highlighted_generators(), low, high, board.lower_is_better)


def make_heat_map(boards: Mapping[tuple[str, str], Board], metric: str) -> HeatMap | None:
    """Return one metric's means by skill, all on the same axis; None if the prompts have no skills."""
    at_skills = [board for (name, skill), board in boards.items() if name == metric and skill != OVERALL]
    if not at_skills:
        return None
    means = [row.mean for board in at_skills for row in board.list_scored_rows()]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    return HeatMap(
        take_first_rows([_make_column(board.skill, board, low, high) for board in at_skills], MAX_SKILLS),
        take_first_rows(list_generator_names(boards[metric, OVERALL].rows), MAX_GENERATORS),
    )


def make_skill_leaders(boards: Mapping[tuple[str, str], Board], metrics: Sequence[str]) -> FirstRows[SkillLeaders]:
    """Return the leaders at every skill on each metric.

    The result is empty unless, at some skill, generators are compared or only one generator has a score.
    """
    at_skills = {key: board for key, board in boards.items() if board.skill != OVERALL and key[0] in metrics}
    if not any(board.duels or len(board.list_scored_rows()) == 1 for board in at_skills.values()):
        return FirstRows([])
    rows = []
    for skill in dict.fromkeys(skill for _, skill in at_skills):
        by_metric = [at_skills.get((metric, skill)) for metric in metrics]
        n = max(row.n + row.n_null for board in by_metric if board for row in board.rows)
        rows.append(SkillLeaders(skill, n, [_find_skill_leader(board) for board in by_metric]))
    return take_first_rows(rows, MAX_SKILLS)


NO_LEAD_TEXTS: Mapping[Outcome, str] = {
    "nothing scored": "–",
    "one scored": "none leads",
    "not compared": "not compared",
    "too few prompts": "too few prompts",
    "no difference": "all tied",
    "no leader": "none leads",
}


def _find_skill_leader(board: Board | None) -> SkillLeader:
    outcome = "nothing scored" if board is None else board.outcome
    if board is None or (outcome in NO_LEAD_TEXTS and not (board.baseline and board.duels)):
        return SkillLeader(NO_LEAD_TEXTS[outcome])
    if board.baseline and board.duels:
        if better := board.list_clearly_better(board.baseline):
            return SkillLeader(f"better: {format_names(better)}")
        if worse := board.list_clearly_worse(board.baseline):
            return SkillLeader(f"worse: {format_names(worse)}")
        return SkillLeader("no clear difference" if board.can_tell else "too few prompts")
    first = board.list_leaders()[0].generator
    tied = board.list_tied_generators(first)
    return SkillLeader(f"tied: {format_names(tied)}" if tied else "", first, len(tied))


def make_pair_comparisons(board: Board) -> PairComparisons:
    """Return one metric's comparisons as a matrix (row against column), and as a list, clearest first."""
    generators = take_first_rows(list_generator_names(board.list_scored_rows()), MAX_MATRIX_GENERATORS)
    kept = set(generators.rows)
    every = [*board.duels, *board.unlike]
    inside = [duel for duel in every if {duel.generator_a, duel.generator_b} <= kept]
    matrix = {(duel.generator_a, duel.generator_b): duel for both in inside for duel in (both, both.swap())}
    ordered = sorted(every, key=lambda duel: (bool(duel.unlike), duel.p_holm, -abs(duel.effect)))
    return PairComparisons(generators, matrix, take_first_rows(ordered, MAX_PAIRS))


SEED_CAPTION = (
    "How much of the noise comes from the seed: the variance between images of a prompt against that between prompts. "
    "It is estimated with one-way random effects and averaged over the generators. More images or prompts narrow a "
    "mean's interval as shown. Comparisons use the same prompts for both generators, so seeds matter more there."
)


def make_seed_table(by_metric: Mapping[str, RepeatVariances]) -> ShownTable:
    """Return a table with a row per metric: standard deviations, and the effect of doubling the images or prompts.

    The standard deviations are those between prompts and between seeds. The effect is the relative change in the width
    of a mean's interval.
    """

    def format_signed_percent(share: float) -> str:
        return "–" if math.isnan(share) else f"{share:.0%}".replace("-", "−")

    rows = [
        (
            metric,
            f"{repeats.images:.3g}",
            format_number(math.sqrt(repeats.between)),
            format_number(math.sqrt(repeats.within)),
            format_signed_percent(repeats.share),
            format_signed_percent(repeats.width_with_twice_the_images - 1),
            format_signed_percent(WIDTH_WITH_TWICE_THE_PROMPTS - 1),
        )
        for metric, repeats in by_metric.items()
    ]
    columns = ("metric", "images a prompt", "deviation between prompts", "between seeds", "of a mean's variance",
               "with twice the images", "with twice the prompts")  # fmt: skip
    return ShownTable("Noise of the seed", SEED_CAPTION, columns, rows)
