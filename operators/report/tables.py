"""The tables of the page as a template shows them: leaderboard, skills, pairs, best at."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from operators.comparison import Board, Duel, Standing
from operators.report.findings import Boards, is_contrary, mean_ranks
from operators.report.words import Shown, names, number, shown, signed
from operators.summary import OVERALL

MOST_ROWS = 60
MOST_SKILLS = 30
MOST_IN_MATRIX = 24
MOST_PAIRS = 400


class BoardCell(NamedTuple):
    """A generator's overall standing by one metric."""

    text: str
    value: float | None
    interval: str
    group: str
    leads: bool
    left: float
    """Where its interval begins on the metric's axis, in percent; `width` and `dot` likewise."""
    width: float
    dot: float
    title: str


class BoardRow(NamedTuple):
    """A generator over all metrics."""

    generator: str
    mean_rank: float | None
    """None where a metric that scored others did not score it."""
    cells: list[BoardCell | None]


class HeatCell(NamedTuple):
    """A generator's mean at a skill."""

    text: str
    value: float | None
    shade: float
    """Percent of the way from the metric's lowest mean to its highest."""
    leads: bool
    partial: bool
    """Whether images without a score are left out of it."""
    title: str


class HeatHead(NamedTuple):
    """A skill's column."""

    skill: str
    n: int


class HeatRow(NamedTuple):
    """A generator's row."""

    generator: str
    cells: list[HeatCell]


class HeatMap(NamedTuple):
    """One metric's means by generator and skill."""

    metric: str
    skills: list[HeatHead]
    rows: Shown[HeatRow]
    left_out: int
    """Skills that are not shown."""


class DuelCell(NamedTuple):
    """A pair in the matrix, seen from the generator of its row."""

    text: str
    """The rank-biserial correlation: above 0 where the signed ranks favour the generator of the row."""
    verdict: str
    """`better`, `worse`, `tied`, or `none` where there is no such pair."""
    title: str


class DuelRow(NamedTuple):
    """A generator's row of the matrix."""

    generator: str
    cells: list[DuelCell]


class Matrix(NamedTuple):
    """One metric's pairs, and the same as a list."""

    metric: str
    generators: list[str]
    rows: list[DuelRow]
    duels: Shown[Duel]
    left_out: int
    """Generators that are not shown."""


class LeadCell(NamedTuple):
    """Who leads at a skill by one metric."""

    name: str
    """The leader, of several the one of the highest mean; empty where there is none."""
    n_tied: int
    tied: str
    """Who cannot be told from it, or why there is none."""
    sole: bool


class BestAt(NamedTuple):
    """A skill with its leaders by each metric."""

    skill: str
    n: int
    cells: list[LeadCell]


def board_rows(found: Boards) -> Shown[BoardRow]:
    """The generators by their mean rank over the metrics, best first."""
    cells = [_board_cells(board) for board in found.values()]
    rows = [
        BoardRow(name, rank, [of_metric.get(name) for of_metric in cells]) for name, rank in mean_ranks(found).items()
    ]
    return shown(rows, MOST_ROWS)


def _board_cells(board: Board) -> dict[str, BoardCell]:
    scored = board.scored()
    low = min((min(one.low, one.mean) for one in scored), default=0.0)
    high = max((max(one.high, one.mean) for one in scored), default=1.0)
    first = leading(board)
    return {one.generator: _board_cell(one, low, high, one.generator in first) for one in board.standings}


def leading(board: Board) -> frozenset[str]:
    """The leaders and those that are not told from them, where that says anything: not where these are all."""
    first = [one.generator for one in (*board.leaders(), *board.close())]
    return frozenset(first) if len(first) < len(board.scored()) else frozenset()


def _board_cell(one: Standing, low: float, high: float, leads: bool) -> BoardCell:
    def place(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2) if high > low else 50.0

    if not one.n:
        return BoardCell("–", None, "", "", False, 0, 0, 0, f"none of its {one.n_null} images has a score")
    start, end = (one.low, one.high) if one.low == one.low else (one.mean, one.mean)
    interval = f"{number(start)}–{number(end)}"
    title = (
        f"rank {one.rank}, 95% interval {number(start)} to {number(end)}, {one.n} images, coverage {one.coverage:.1%}"
    )
    dot, left = place(one.mean), place(start)
    return BoardCell(number(one.mean), one.mean, interval, one.group, leads, left, place(end) - left, dot, title)


def heat_map(found: Mapping[tuple[str, str], Board], metric: str) -> HeatMap | None:
    """One metric's means by skill; None where prompts have no skills."""
    at_skills = {skill: board for (of, skill), board in found.items() if of == metric and skill != OVERALL}
    if not at_skills:
        return None
    boards = shown(list(at_skills.values()), MOST_SKILLS)
    order = shown([one.generator for one in found[metric, OVERALL].standings], MOST_ROWS)
    means = [one.mean for board in at_skills.values() for one in board.scored()]
    span = (min(means), max(means)) if means else (0.0, 1.0)
    cells = {(one.generator, board.skill): one for board in boards.rows for one in board.standings}
    first = {(name, board.skill) for board in boards.rows for name in leading(board)}
    rows = [
        HeatRow(
            name,
            [_heat_cell(cells.get((name, board.skill)), span, (name, board.skill) in first) for board in boards.rows],
        )
        for name in order.rows
    ]
    heads = [HeatHead(board.skill, _expected(board)) for board in boards.rows]
    return HeatMap(metric, heads, Shown(rows, order.left_out), boards.left_out)


def _expected(board: Board) -> int:
    return max(one.n + one.n_null for one in board.standings)


def _heat_cell(one: Standing | None, span: tuple[float, float], leads: bool) -> HeatCell:
    if one is None or not one.n:
        return HeatCell("–", None, 0, False, False, "no image with a score")
    low, high = span
    shade = 100 * (one.mean - low) / (high - low) if high > low else 50
    title = f"{one.generator} at {one.skill}: {number(one.mean)}, 95% interval {number(one.low)} to {number(one.high)}, {one.n} images"  # noqa: E501
    title += f", {one.n_null} without a score" if one.n_null else ""
    return HeatCell(number(one.mean, 2), one.mean, round(shade), leads, one.n_null > 0, title)


def best_at(found: Mapping[tuple[str, str], Board], metrics: Sequence[str]) -> Shown[BestAt]:
    """Every skill with who leads by each metric; none where no two generators are compared at a skill."""
    if not any(board.duels or len(board.scored()) == 1 for (_, skill), board in found.items() if skill != OVERALL):
        return Shown([])
    skills = shown(list(dict.fromkeys(skill for _, skill in found if skill != OVERALL)), MOST_SKILLS)
    return Shown(
        [_best_at(skill, [found.get((metric, skill)) for metric in metrics]) for skill in skills.rows], skills.left_out
    )


def _best_at(skill: str, boards: Sequence[Board | None]) -> BestAt:
    return BestAt(skill, max(_expected(board) for board in boards if board), [_lead_cell(board) for board in boards])


def _lead_cell(board: Board | None) -> LeadCell:
    if board is None or not board.scored():
        return LeadCell("", 0, "–", False)
    if len(board.scored()) > 1 and not any(duel.better for duel in board.duels):
        return LeadCell("", 0, "all tied" if board.duels else "not compared", False)
    if not board.leaders():
        return LeadCell("", 0, "none leads", False)
    first = board.leaders()[0].generator
    tied = board.tied_with(first)
    return LeadCell(first, len(tied), f"tied: {names(tied)}" if tied else "", not tied)


def matrix(board: Board) -> Matrix:
    """One metric's pairs: how often and how far the generator of a row is above that of a column."""
    order = shown([one.generator for one in board.scored()], MOST_IN_MATRIX)
    by_pair: Mapping[tuple[str, str], Duel] = {(one.generator_a, one.generator_b): one for one in board.duels}
    rows = [DuelRow(name, [_duel_cell(name, other, by_pair) for other in order.rows]) for name in order.rows]
    ordered = sorted(board.duels, key=lambda one: (one.p_holm, -abs(one.effect)))
    return Matrix(board.metric, order.rows, rows, shown(ordered, MOST_PAIRS), order.left_out)


def _duel_cell(name: str, other: str, by_pair: Mapping[tuple[str, str], Duel]) -> DuelCell:
    duel, turned = by_pair.get((name, other)), by_pair.get((other, name))
    one = duel or turned
    if one is None:
        return DuelCell("", "none", "")
    sign = 1 if duel is not None else -1
    wins = one.win_rate if duel is not None else 1 - one.win_rate
    verdict = "tied" if one.better is None else "better" if one.better == name else "worse"
    said = {"tied": "cannot be told from", "better": "is clearly better than", "worse": "is clearly worse than"}[
        verdict
    ]
    title = (
        f"{name} {said} {other}: effect {signed(sign * one.effect, 2)}, p {p_text(one.p_holm)}, wins {wins:.0%} of "
        f"{one.n} prompts, mean difference {signed(sign * one.difference)}"
    )
    return DuelCell(signed(sign * one.effect, 2), verdict, title + (" (against the ranks)" if is_contrary(one) else ""))


def p_text(value: float) -> str:
    """A p-value as it is shown."""
    if value != value:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
