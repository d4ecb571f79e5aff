"""The tables of the page as a template shows them: leaderboard, skills, pairs, best at."""

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from operators.comparison import Board, Duel, Standing
from operators.report.findings import Boards, is_contrary, mean_ranks
from operators.report.words import Shown, names, number, shown, signed
from operators.summary import OVERALL

MOST_ROWS = 60
MOST_SKILLS = 30
MOST_IN_MATRIX = 24
MOST_PAIRS = 400
SAID = {"tied": "cannot be told from", "better": "is clearly better than", "worse": "is clearly worse than"}

Cell = TypeVar("Cell")


class BoardCell(NamedTuple):
    """A generator's overall standing by one metric."""

    text: str
    value: float | None
    title: str
    group: str = ""
    leads: bool = False
    left: float = 0
    """Where its interval begins on the metric's axis, in percent; `width` and `dot` likewise."""
    width: float = 0
    dot: float = 0


class BoardRow(NamedTuple):
    """A generator over all metrics."""

    generator: str
    mean_rank: float | None
    """None where a metric that scored others did not score it."""
    cells: list[BoardCell | None]


class GeneratorRow(NamedTuple, Generic[Cell]):
    """A generator's row of a heat map or a matrix."""

    generator: str
    cells: list[Cell]


class HeatCell(NamedTuple):
    """A generator's mean at a skill."""

    text: str
    value: float | None
    title: str
    shade: float = 0
    """Percent of the way from the metric's lowest mean to its highest."""
    leads: bool = False
    partial: bool = False
    """Whether images without a score are left out of it."""


class HeatMap(NamedTuple):
    """One metric's means by generator and skill."""

    skills: Shown[tuple[str, int]]
    """With how many images of a generator each counts."""
    rows: Shown[GeneratorRow[HeatCell]]


class DuelCell(NamedTuple):
    """A pair in the matrix, seen from the generator of its row."""

    text: str
    """The rank-biserial correlation: above 0 where the signed ranks favour the generator of the row."""
    verdict: str
    """`better`, `worse`, `tied`, or `none` where there is no such pair."""
    title: str


class Matrix(NamedTuple):
    """One metric's pairs, and the same as a list."""

    generators: list[str]
    rows: list[GeneratorRow[DuelCell]]
    duels: Shown[Duel]
    left_out: int
    """Generators that are not shown."""


class LeadCell(NamedTuple):
    """Who leads at a skill by one metric."""

    tied: str
    """Who cannot be told from the leader, or why there is none."""
    name: str = ""
    """The leader, of several that of the highest mean; empty where there is none."""
    n_tied: int = 0
    sole: bool = False


class BestAt(NamedTuple):
    """A skill with its leaders by each metric."""

    skill: str
    n: int
    cells: list[LeadCell]


def board_rows(overall: Boards) -> Shown[BoardRow]:
    """The generators by their mean rank over the metrics, best first."""
    columns = [_board_cells(board) for board in overall.values()]
    ranks = mean_ranks(overall)
    rows = [BoardRow(name, rank, [cells.get(name) for cells in columns]) for name, rank in ranks.items()]
    return shown(rows, MOST_ROWS)


def _board_cells(board: Board) -> dict[str, BoardCell]:
    scored, first = board.scored(), leading(board)
    low = min((min(standing.low, standing.mean) for standing in scored), default=0.0)
    high = max((max(standing.high, standing.mean) for standing in scored), default=1.0)
    return {
        standing.generator: _board_cell(standing, low, high, standing.generator in first)
        for standing in board.standings
    }


def leading(board: Board) -> frozenset[str]:
    """The leaders and those that are not told from them, where that says anything: not where these are all."""
    first = [standing.generator for standing in (*board.leaders(), *board.close())]
    return frozenset(first) if len(first) < len(board.scored()) else frozenset()


def _percent(value: float, low: float, high: float) -> float:
    return 100 * (value - low) / (high - low) if high > low else 50.0


def _board_cell(standing: Standing, low: float, high: float, leads: bool) -> BoardCell:
    if not standing.n:
        return BoardCell("–", None, f"none of its {standing.n_null} images has a score")
    mean = standing.mean
    start, end = (standing.low, standing.high) if standing.low == standing.low else (mean, mean)
    left, right, dot = (round(_percent(value, low, high), 2) for value in (start, end, mean))
    title = (
        f"rank {standing.rank}, 95% interval {number(start)} to {number(end)}, {standing.n} images, "
        f"coverage {standing.coverage:.1%}"
    )
    return BoardCell(number(mean), mean, title, standing.group, leads, left, right - left, dot)


def heat_map(by_place: Mapping[tuple[str, str], Board], metric: str) -> HeatMap | None:
    """One metric's means by skill; None where prompts have no skills."""
    at_skills = [board for (name, skill), board in by_place.items() if name == metric and skill != OVERALL]
    if not at_skills:
        return None
    boards = shown(at_skills, MOST_SKILLS)
    generators = shown([standing.generator for standing in by_place[metric, OVERALL].standings], MOST_ROWS)
    means = [standing.mean for board in at_skills for standing in board.scored()]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    rows: dict[str, list[HeatCell]] = {name: [] for name in generators.rows}
    for board in boards.rows:
        first = leading(board)
        standings = {standing.generator: standing for standing in board.standings}
        for name, cells in rows.items():
            cells.append(_heat_cell(standings.get(name), low, high, name in first))
    heads = [(board.skill, _expected(board)) for board in boards.rows]
    return HeatMap(
        Shown(heads, boards.left_out),
        Shown([GeneratorRow(name, cells) for name, cells in rows.items()], generators.left_out),
    )


def _expected(board: Board) -> int:
    return max(standing.n + standing.n_null for standing in board.standings)


def _heat_cell(standing: Standing | None, low: float, high: float, leads: bool) -> HeatCell:
    if standing is None or not standing.n:
        return HeatCell("–", None, "no image with a score")
    mean, interval = standing.mean, f"{number(standing.low)} to {number(standing.high)}"
    title = f"{standing.generator} at {standing.skill}: {number(mean)}, 95% interval {interval}, {standing.n} images"
    title += f", {standing.n_null} without a score" if standing.n_null else ""
    return HeatCell(number(mean, 2), mean, title, round(_percent(mean, low, high)), leads, standing.n_null > 0)


def best_at(by_place: Mapping[tuple[str, str], Board], metrics: Sequence[str]) -> Shown[BestAt]:
    """Every skill with who leads by each metric; none where no two generators are compared at a skill."""
    at_skills = {place: board for place, board in by_place.items() if board.skill != OVERALL}
    if not any(board.duels or len(board.scored()) == 1 for board in at_skills.values()):
        return Shown([])
    skills = shown(list(dict.fromkeys(skill for _, skill in at_skills)), MOST_SKILLS)
    rows = []
    for skill in skills.rows:
        boards = [at_skills.get((metric, skill)) for metric in metrics]
        n = max(_expected(board) for board in boards if board)
        rows.append(BestAt(skill, n, [_lead_cell(board) for board in boards]))
    return Shown(rows, skills.left_out)


def _lead_cell(board: Board | None) -> LeadCell:
    if board is None or not board.scored():
        return LeadCell("–")
    if len(board.scored()) > 1 and not any(duel.better for duel in board.duels):
        return LeadCell("all tied" if board.duels else "not compared")
    if not board.leaders():
        return LeadCell("none leads")
    first = board.leaders()[0].generator
    tied = board.tied_with(first)
    return LeadCell(f"tied: {names(tied)}" if tied else "", first, len(tied), not tied)


def matrix(board: Board) -> Matrix:
    """One metric's pairs: how often and how far the generator of a row is above that of a column."""
    order = shown([standing.generator for standing in board.scored()], MOST_IN_MATRIX)
    pairs = {(duel.generator_a, duel.generator_b): duel for duel in board.duels}
    rows = [GeneratorRow(name, [_duel_cell(name, other, pairs) for other in order.rows]) for name in order.rows]
    ordered = sorted(board.duels, key=lambda duel: (duel.p_holm, -abs(duel.effect)))
    return Matrix(order.rows, rows, shown(ordered, MOST_PAIRS), order.left_out)


def _duel_cell(name: str, other: str, pairs: Mapping[tuple[str, str], Duel]) -> DuelCell:
    duel = pairs.get((name, other)) or pairs.get((other, name))
    if duel is None:
        return DuelCell("", "none", "")
    is_first = duel.generator_a == name
    effect, difference = (value if is_first else -value for value in (duel.effect, duel.difference))
    wins = duel.win_rate if is_first else 1 - duel.win_rate
    verdict = "tied" if duel.better is None else "better" if duel.better == name else "worse"
    title = (
        f"{name} {SAID[verdict]} {other}: effect {signed(effect, 2)}, p {p_text(duel.p_holm)}, wins {wins:.0%} of "
        f"{duel.n} prompts, mean difference {signed(difference)}"
    )
    return DuelCell(signed(effect, 2), verdict, title + (" (against the ranks)" if is_contrary(duel) else ""))


def p_text(value: float) -> str:
    """A p-value as it is shown."""
    if value != value:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
