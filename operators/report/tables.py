"""The tables of the page as a template shows them: leaderboard, skills, pairs, best at."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from operators.comparison import Duel, Standing
from operators.report.findings import Boards, Leaders, boards, leaders, names, number, signed
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
    mean_rank: float
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
    """A generator's line."""

    generator: str
    cells: list[HeatCell]


class HeatMap(NamedTuple):
    """One metric's means by generator and skill."""

    metric: str
    skills: list[HeatHead]
    rows: list[HeatRow]
    left_out: int
    """Skills that are not shown."""


class DuelCell(NamedTuple):
    """A pair in the matrix, seen from the generator of its line."""

    text: str
    verdict: str
    """`better`, `worse`, `tied`, or `none` where there is no such pair."""
    title: str


class DuelRow(NamedTuple):
    """A generator's line of the matrix."""

    generator: str
    cells: list[DuelCell]


class Matrix(NamedTuple):
    """One metric's pairs, and the same as a list."""

    metric: str
    generators: list[str]
    rows: list[DuelRow]
    duels: list[Duel]
    left_out: int
    """Generators that are not shown."""


class LeadCell(NamedTuple):
    """Who leads at a skill by one metric."""

    name: str
    """The first; empty where all are tied or none has a score."""
    n_tied: int
    tied: str
    """Who cannot be told from it, or why there is none."""
    sole: bool


class BestAt(NamedTuple):
    """A skill with its leaders by each metric."""

    skill: str
    n: int
    cells: list[LeadCell]


def board_rows(found: Boards) -> list[BoardRow]:
    """The generators by their mean rank over the metrics, best first."""
    cells = {metric: _board_cells(board) for metric, board in found.items()}
    ranks: dict[str, list[int]] = {}
    for board in found.values():
        for one in board:
            ranks.setdefault(one.generator, []).append(one.rank)
    rows = [
        BoardRow(name, sum(its) / len(its), [cells[metric].get(name) for metric in found])
        for name, its in ranks.items()
    ]
    return sorted(rows, key=lambda row: (row.mean_rank, row.generator))[:MOST_ROWS]


def _board_cells(board: Sequence[Standing]) -> dict[str, BoardCell]:
    scored = [one for one in board if one.n]
    low = min((min(one.low, one.mean) for one in scored), default=0.0)
    high = max((max(one.high, one.mean) for one in scored), default=1.0)
    first = {one.generator for one in leaders(scored)} if scored else set()
    return {one.generator: _board_cell(one, low, high, one.generator in first) for one in board}


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


def heat_map(metric: str, standings: Sequence[Standing]) -> HeatMap | None:
    """One metric's means by skill; None where prompts have no skills."""
    mine = [one for one in standings if one.metric == metric]
    skills = list(dict.fromkeys(one.skill for one in mine if one.skill != OVERALL))
    if not skills:
        return None
    order = [one.generator for one in boards(mine).get(metric, ())][:MOST_ROWS]
    shown = skills[:MOST_SKILLS]
    cells = {(one.generator, one.skill): one for one in mine}
    first = {(one.generator, skill) for skill in shown for one in _skill_leaders(mine, skill)}
    means = [one.mean for one in mine if one.n and one.skill != OVERALL]
    span = (min(means), max(means)) if means else (0.0, 1.0)
    heads = [HeatHead(skill, _expected(mine, skill)) for skill in shown]
    rows = [
        HeatRow(name, [_heat_cell(cells.get((name, skill)), span, (name, skill) in first) for skill in shown])
        for name in order
    ]
    return HeatMap(metric, heads, rows, len(skills) - len(shown))


def _skill_leaders(mine: Sequence[Standing], skill: str) -> list[Standing]:
    """Who leads at a skill, where that says anything: not where all are tied."""
    board = [one for one in mine if one.skill == skill and one.n]
    first = leaders(sorted(board, key=lambda one: one.rank)) if board and board[0].group else []
    return first if len(first) < len(board) else []


def _expected(mine: Sequence[Standing], skill: str) -> int:
    return max(one.n + one.n_null for one in mine if one.skill == skill)


def _heat_cell(one: Standing | None, span: tuple[float, float], leads: bool) -> HeatCell:
    if one is None or not one.n:
        return HeatCell("–", None, 0, False, False, "no image with a score")
    low, high = span
    shade = 100 * (one.mean - low) / (high - low) if high > low else 50
    title = f"{one.generator} at {one.skill}: {number(one.mean)}, 95% interval {number(one.low)} to {number(one.high)}, {one.n} images"  # noqa: E501
    title += f", {one.n_null} without a score" if one.n_null else ""
    return HeatCell(number(one.mean, 2), one.mean, round(shade), leads, one.n_null > 0, title)


def best_at(found: Sequence[Leaders], standings: Sequence[Standing], metrics: Sequence[str]) -> list[BestAt]:
    """Every skill with who leads by each metric."""
    by_place = {(one.skill, one.metric): one for one in found}
    skills = list(dict.fromkeys(one.skill for one in found))[:MOST_SKILLS]
    return [
        BestAt(
            skill,
            _expected(standings, skill),
            [_lead_cell(by_place.get((skill, metric))) for metric in metrics],
        )
        for skill in skills
    ]


def _lead_cell(one: Leaders | None) -> LeadCell:
    if one is None or not one.names:
        return LeadCell("", 0, "–", False)
    if one.n_generators > 1 and len(one.names) == one.n_generators:
        return LeadCell("", 0, "all tied", False)
    others = one.names[1:]
    return LeadCell(one.names[0], len(others), f"tied: {names(others)}" if others else "", not others)


def matrix(metric: str, duels: Sequence[Duel], order: Sequence[str]) -> Matrix:
    """One metric's pairs: how far the generator of a line is above that of a column."""
    mine = [one for one in duels if one.metric == metric and one.skill == OVERALL]
    shown = list(order[:MOST_IN_MATRIX])
    by_pair: Mapping[tuple[str, str], Duel] = {(one.generator_a, one.generator_b): one for one in mine}
    rows = [DuelRow(name, [_duel_cell(name, other, by_pair) for other in shown]) for name in shown]
    ordered = sorted(mine, key=lambda one: (one.p_holm, -abs(one.difference)))
    return Matrix(metric, shown, rows, ordered[:MOST_PAIRS], len(order) - len(shown))


def _duel_cell(name: str, other: str, by_pair: Mapping[tuple[str, str], Duel]) -> DuelCell:
    duel, turned = by_pair.get((name, other)), by_pair.get((other, name))
    if duel is None and turned is None:
        return DuelCell("", "none", "")
    one = duel or turned
    assert one is not None
    difference = one.difference if duel is not None else -one.difference
    wins = one.win_rate if duel is not None else 1 - one.win_rate
    verdict = "tied" if one.better is None else "better" if one.better == name else "worse"
    said = {"tied": "cannot be told from", "better": "is clearly better than", "worse": "is clearly worse than"}[
        verdict
    ]
    title = f"{name} {said} {other}: {signed(difference)}, p {p_text(one.p_holm)}, wins {wins:.0%} of {one.n} prompts"
    return DuelCell(signed(difference, 2), verdict, title)


def p_text(value: float) -> str:
    """A p-value as it is shown."""
    if value != value:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
