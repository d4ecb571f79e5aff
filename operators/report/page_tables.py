"""The tables of the page as a template walks them: leaderboard, skills, pairs, best at."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.sentences import FirstRows, names, shown
from plumbline.operators.results.comparison import Board, Duel, Standing, generators_of
from plumbline.operators.results.summary import OVERALL

MOST_GENERATORS = 60
MOST_SKILLS = 30
MOST_IN_MATRIX = 40
MAX_NAMED_COLUMNS = 8
"""Columns of a matrix that are headed by names; more are numbered, as their rows are."""
MAX_EFFECT_COLUMNS = 20
"""Columns of a matrix whose cells have room for an effect; with more they have signs."""
MOST_PAIRS = 400


class Column(NamedTuple):
    """A board as a column: of the leaderboard a metric's, of a heat map a skill's."""

    name: str
    standings: Mapping[str, Standing]
    """By generator."""
    leading: frozenset[str]
    low: float
    """The ends of the axis that its means are drawn on."""
    high: float
    lower_is_better: bool

    @property
    def expected(self) -> int:
        """How many images of a generator it counts."""
        return max(standing.n + standing.n_null for standing in self.standings.values())

    def percent(self, value: float) -> float:
        """Where a value lies on the axis."""
        return 100 * (value - self.low) / (self.high - self.low) if self.high > self.low else 50.0

    def strength(self, value: float) -> float:
        """How near a value is to the better end of the axis, in percent."""
        return 100 - self.percent(value) if self.lower_is_better else self.percent(value)


class HeatMap(NamedTuple):
    """One metric's means by generator and skill."""

    skills: FirstRows[Column]
    generators: FirstRows[str]


class Pairs(NamedTuple):
    """One metric's pairs, as a matrix and as a list."""

    generators: FirstRows[str]
    seen: Mapping[tuple[str, str], Duel]
    """Every two of the generators, from the side of the first."""
    duels: FirstRows[Duel]


class Lead(NamedTuple):
    """Who leads at a skill by one metric."""

    note: str
    """Who cannot be told from the leader, or why there is none."""
    generator: str = ""
    """The leader, of several that of the best mean; empty where there is none."""
    n_tied: int = 0


class BestAt(NamedTuple):
    """A skill with its leaders by each metric."""

    skill: str
    n: int
    leads: list[Lead]


def board_column(board: Board) -> Column:
    """Return a metric's column of the leaderboard, with an axis from the lowest to the highest end of an interval."""
    low = min((min(standing.ends[0], standing.mean) for standing in board.scored()), default=0.0)
    high = max((max(standing.ends[1], standing.mean) for standing in board.scored()), default=1.0)
    return _column(board.metric, board, low, high)


def _column(name: str, board: Board, low: float, high: float) -> Column:
    by_generator = {standing.generator: standing for standing in board.standings}
    return Column(name, by_generator, board.leading(), low, high, board.lower_is_better)


def heat_map(by_place: Mapping[tuple[str, str], Board], metric: str) -> HeatMap | None:
    """One metric's means by skill, on one axis; None where prompts have no skills."""
    boards = [board for (name, skill), board in by_place.items() if name == metric and skill != OVERALL]
    if not boards:
        return None
    means = [standing.mean for board in boards for standing in board.scored()]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    return HeatMap(
        shown([_column(board.skill, board, low, high) for board in boards], MOST_SKILLS),
        shown(generators_of(by_place[metric, OVERALL].standings), MOST_GENERATORS),
    )


def best_at(by_place: Mapping[tuple[str, str], Board], metrics: Sequence[str]) -> FirstRows[BestAt]:
    """Every skill with who leads by each metric; none where no two generators are compared at a skill."""
    at_skills = {place: board for place, board in by_place.items() if board.skill != OVERALL and place[0] in metrics}
    if not any(board.duels or len(board.scored()) == 1 for board in at_skills.values()):
        return FirstRows([])
    rows = []
    for skill in dict.fromkeys(skill for _, skill in at_skills):
        boards = [at_skills.get((metric, skill)) for metric in metrics]
        n = max(standing.n + standing.n_null for board in boards if board for standing in board.standings)
        rows.append(BestAt(skill, n, [_lead(board) for board in boards]))
    return shown(rows, MOST_SKILLS)


def _lead(board: Board | None) -> Lead:
    if board is None or not board.scored():
        return Lead("–")
    if board.baseline and board.duels:
        return Lead(_beside_baseline(board))
    if len(board.scored()) > 1 and not any(duel.better for duel in board.duels):
        return Lead("not compared" if not board.duels else "all tied" if board.can_tell else "too few prompts")
    if not board.leaders():
        return Lead("none leads")
    first = board.leaders()[0].generator
    tied = board.tied_with(first)
    return Lead(f"tied: {names(tied)}" if tied else "", first, len(tied))


def _beside_baseline(board: Board) -> str:
    """Who is clearly better than the baseline, or else who is clearly worse."""
    if better := board.better_than(board.baseline):
        return f"better: {names(better)}"
    if worse := board.worse_than(board.baseline):
        return f"worse: {names(worse)}"
    return "none told from it" if board.can_tell else "too few prompts"


def pairs(board: Board) -> Pairs:
    """One metric's pairs: how far the generator of a row is above that of a column, and the clearest first."""
    generators = shown(generators_of(board.scored()), MOST_IN_MATRIX)
    kept = set(generators.rows)
    every = [*board.duels, *board.unlike]
    inside = [duel for duel in every if {duel.generator_a, duel.generator_b} <= kept]
    seen = {(duel.generator_a, duel.generator_b): duel for both in inside for duel in (both, both.turned())}
    ordered = sorted(every, key=lambda duel: (bool(duel.unlike), duel.p_holm, -abs(duel.effect)))
    return Pairs(generators, seen, shown(ordered, MOST_PAIRS))
