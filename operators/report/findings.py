"""What a run says, in words: who is best by each metric, at what, how sure we are, and where metrics contradict."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np

from operators.comparison import Duel, Standing
from operators.summary import OVERALL

MOST_NAMES = 4
MOST_LIMITS = 5
MOST_BEHIND = 8
CLEAR = 3.0
"""Standard errors from which a generator's shortfall at a skill is worth a sentence."""

Boards = Mapping[str, Sequence[Standing]]
"""By metric, the overall standings, best first."""


class Sentence(NamedTuple):
    """A finding: its first words, which are shown bold, and the rest."""

    lead: str
    rest: str

    def __str__(self) -> str:
        return f"{self.lead} {self.rest}".strip()


class Leaders(NamedTuple):
    """Who leads at one skill by one metric: the first, and those that cannot be told from it."""

    metric: str
    skill: str
    names: tuple[str, ...]
    n_generators: int


class Shortfall(NamedTuple):
    """A skill at which a generator does worse than its own level and the skill's difficulty explain."""

    generator: str
    skill: str
    size: float
    """In standard errors, the median over the metrics; negative."""


def boards(standings: Iterable[Standing], skill: str = OVERALL) -> dict[str, list[Standing]]:
    """By metric, the standings at one skill, best first."""
    found: dict[str, list[Standing]] = defaultdict(list)
    for standing in standings:
        if standing.skill == skill:
            found[standing.metric].append(standing)
    return {metric: sorted(board, key=lambda one: one.rank) for metric, board in found.items()}


def tied(one: Standing, other: Standing) -> bool:
    """Whether two generators are not told apart: they share a letter."""
    return bool(set(one.group) & set(other.group))


def leaders(board: Sequence[Standing]) -> list[Standing]:
    """The first of a board with a score, and those that are tied with it."""
    scored = [one for one in board if one.n]
    return [one for one in scored if one is scored[0] or tied(one, scored[0])]


def number(value: float | None, digits: int = 3) -> str:
    """A score as it is shown."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """A difference as it is shown."""
    if value is None or math.isnan(value):
        return "–"
    shown = f"{abs(value):.{digits}f}"
    return shown if float(shown) == 0 else f"{'+' if value > 0 else '−'}{shown}"


def names(found: Sequence[str], most: int = MOST_NAMES) -> str:
    """`a, b and c`; of many the first few and how many more."""
    if len(found) > most + 1:
        return f"{', '.join(found[:most])} and {len(found) - most} more"
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def headline(found: Boards) -> Sentence:
    """The decision in one line."""
    first = {metric: leaders(board) for metric, board in found.items() if leaders(board)}
    if not first:
        return Sentence("Nothing could be scored.", "The health of the run, below, says why.")
    if max(len([one for one in board if one.n]) for board in found.values()) == 1:
        only = next(iter(first.values()))[0]
        return Sentence("One generator was scored:", f"{only.generator}. There is nothing to rank it against.")
    sole = [its[0].generator for its in first.values() if len(its) == 1]
    if len(set(sole)) > 1:
        return _split(sole, len(first))
    best = sole[0] if sole else _most_often([[one.generator for one in its] for its in first.values()])
    return _united(best, first)


def _united(best: str, first: Mapping[str, Sequence[Standing]]) -> Sentence:
    """The headline where no two metrics have different clear winners."""
    clear = [metric for metric, its in first.items() if [one.generator for one in its] == [best]]
    if len(clear) == len(first):
        by = "" if len(first) == 1 else f" — by {_all_of(len(first))} metrics"
        return Sentence(f"{best} is the best generator{by}.", "")
    others = [[one.generator for one in its if one.generator != best] for its in first.values()]
    if clear:
        mates = list(dict.fromkeys(name for its in others for name in its))
        rest = f"The other{'s' if len(first) > len(clear) + 1 else ''} cannot tell it from {names(mates)}."
        return Sentence(f"{best} is the best generator by {len(clear)} of {len(first)} metrics.", rest)
    return _shared(best, first, _by_most(others) or others[0])


def _all_of(count: int) -> str:
    return "both" if count == 2 else f"all {count}"


def _shared(best: str, first: Mapping[str, Sequence[Standing]], mates: Sequence[str]) -> Sentence:
    """The headline where no metric has a clear winner."""
    ahead = sum(its[0].generator == best for its in first.values())
    if ahead <= len(first) / 2:
        return Sentence("No single best generator:", f"{names([best, *mates])} cannot be told apart at the top.")
    by = (
        ""
        if len(first) == 1
        else f" by {_all_of(len(first)) if ahead == len(first) else f'{ahead} of {len(first)}'} metrics"
    )
    return Sentence(f"{best} comes first{by}, but not alone:", f"{names(mates)} cannot be told from it.")


def _by_most(lists: Sequence[Sequence[str]]) -> list[str]:
    """The names that stand in more than half of the lists."""
    seen = [name for its in lists for name in its]
    return [name for name in dict.fromkeys(seen) if seen.count(name) > len(lists) / 2]


def _split(sole: Sequence[str], n_metrics: int) -> Sentence:
    """The headline where metrics have different clear winners."""
    counts = {name: sole.count(name) for name in dict.fromkeys(sole)}
    ordered = sorted(counts, key=lambda name: -counts[name])
    parts = [f"{name} by {counts[name]}" for name in ordered]
    return Sentence("The metrics disagree on the best generator:", f"{names(parts)} of {n_metrics} metrics.")


def _most_often(lists: Sequence[Sequence[str]]) -> str:
    seen = [name for its in lists for name in its]
    return max(dict.fromkeys(seen), key=seen.count)


def board_sentence(metric: str, board: Sequence[Standing]) -> Sentence:
    """Who is best by one metric, how high, how sure, and who follows."""
    scored = [one for one in board if one.n]
    if not scored:
        return Sentence(f"{metric} scored nothing.", "")
    top = leaders(board)
    first = _mean_text(top[0])
    if len(scored) == 1:
        return Sentence(top[0].generator, f"has {first} by {metric}.")
    if len(top) > 1:
        mates = names([one.generator for one in top[1:]])
        rest = f"by {metric} ({first}); {mates} cannot be told from it.{_short(top[0])}"
        return Sentence(f"{top[0].generator} comes first", rest)
    return Sentence(f"{top[0].generator} is best", f"by {metric} ({first}).{_followers(scored)}{_short(top[0])}")


def _mean_text(one: Standing) -> str:
    """A mean with its interval, where one image alone does not leave it without."""
    interval = f", 95% interval {number(one.low)} to {number(one.high)}" if math.isfinite(one.low) else ""
    return number(one.mean) + interval


def _followers(scored: Sequence[Standing]) -> str:
    second = scored[1]
    group = [one.generator for one in scored[1:] if one is second or tied(one, second)]
    if len(group) == 1:
        return f" {second.generator} follows with {number(second.mean)}."
    return f" {names(group)} are tied behind it."


def _short(first: Standing) -> str:
    """A warning where the leader's mean is over fewer images than it should be."""
    return "" if first.coverage > 0.99 else f" Only {first.coverage:.0%} of its images have a score."


def leaders_by_skill(standings: Sequence[Standing]) -> list[Leaders]:
    """For every skill and metric, who leads; skills in the order of the standings."""
    found = []
    for skill in dict.fromkeys(one.skill for one in standings if one.skill != OVERALL):
        for metric, board in boards(standings, skill).items():
            its = tuple(one.generator for one in leaders(board))
            found.append(Leaders(metric, skill, its, sum(1 for one in board if one.n)))
    return found


def skill_sentences(standings: Sequence[Standing], duels: Sequence[Duel], order: Sequence[str]) -> list[Sentence]:
    """At what the generators differ; `order` has the best first, with which the others are compared."""
    skills = list(dict.fromkeys(one.skill for one in duels if one.skill != OVERALL))
    if not skills or len(order) < 2:
        return []
    weak: dict[str, list[str]] = defaultdict(list)
    for one in shortfalls(standings):
        weak[one.generator].append(one.skill)
    behind = {name: _behind(name, order[0], skills, duels) for name in order[1:]}
    level = [name for name, its in behind.items() if not its]
    found = [
        _behind_sentence(name, order[0], its, len(skills), weak[name])
        for name, its in list(behind.items())[:MOST_BEHIND]
        if its
    ]
    if not found:
        return [Sentence("No clear difference at any skill:", f"no generator is behind {order[0]} by most metrics.")]
    even = [Sentence(f"Not clearly behind {order[0]} at any skill:", f"{names(level)}.")] if level else []
    return [*even, *found]


def _behind(name: str, best: str, skills: Sequence[str], duels: Sequence[Duel]) -> list[str]:
    """The skills at which a generator is clearly worse than the best by most of the metrics that compare them."""
    found = []
    for skill in skills:
        mine = [one for one in duels if one.skill == skill and {one.generator_a, one.generator_b} == {name, best}]
        if mine and sum(one.better == best for one in mine) > len(mine) / 2:
            found.append(skill)
    return found


def _behind_sentence(name: str, best: str, skills: Sequence[str], n_skills: int, weak: Sequence[str]) -> Sentence:
    """Where a generator is behind, and at which of these more than its level elsewhere lets expect."""
    where = f"at all {n_skills} skills" if len(skills) == n_skills > 1 else f"at {names(skills, 2 * MOST_NAMES)}"
    most = [skill for skill in weak if skill in skills]
    special = f", most of all at {names(most)}" if most and len(skills) > len(most) else ""
    return Sentence(f"{name} is clearly behind {best}", f"{where}{special}.")


def shortfalls(standings: Sequence[Standing]) -> list[Shortfall]:
    """Where generators do clearly worse than their own level and the skill's difficulty explain, the worst first.

    Of each metric's means by generator and skill, what is left after both averages are taken off, over the mean's
    standard error; of these the median over the metrics.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for metric in dict.fromkeys(one.metric for one in standings):
        for place, size in _residuals([one for one in standings if one.metric == metric]).items():
            found[place].append(size)
    sizes = [Shortfall(*place, median(its)) for place, its in found.items()]
    return sorted((one for one in sizes if one.size < -CLEAR), key=lambda one: one.size)


def _residuals(standings: Sequence[Standing]) -> dict[tuple[str, str], float]:
    """One metric's shortfalls in standard errors; empty unless every generator has a mean at every skill."""
    cells = {(one.generator, one.skill): one for one in standings if one.skill != OVERALL and one.n > 1}
    generators = list(dict.fromkeys(generator for generator, _ in cells))
    skills = list(dict.fromkeys(skill for _, skill in cells))
    if len(cells) < len(generators) * len(skills) or len(generators) < 3 or len(skills) < 2:
        return {}
    means = np.array([[cells[generator, skill].mean for skill in skills] for generator in generators])
    left = means - np.median(means, axis=1, keepdims=True) - np.median(means, axis=0, keepdims=True) + np.median(means)
    return {
        (generator, skill): float(left[row, column]) / _standard_error(cells[generator, skill])
        for row, generator in enumerate(generators)
        for column, skill in enumerate(skills)
    }


def _standard_error(standing: Standing) -> float:
    error = (standing.high - standing.low) / (2 * 1.96)
    return error if error > 1e-9 else math.inf


def agreement_sentences(duels: Sequence[Duel]) -> list[Sentence]:
    """Whether metrics contradict each other: both see a clear difference, and not the same one."""
    seen: dict[frozenset[str], dict[str, str]] = defaultdict(dict)
    metrics = list(dict.fromkeys(one.metric for one in duels))
    for one in duels:
        if one.skill == OVERALL and one.better is not None:
            seen[frozenset((one.generator_a, one.generator_b))][one.metric] = one.better
    if len(metrics) < 2:
        return []
    split = {pair: its for pair, its in seen.items() if len(set(its.values())) > 1}
    if not split:
        return [Sentence("The metrics agree.", "No two of them see clear differences that contradict each other.")]
    return [_contradiction(pair, its) for pair, its in list(split.items())[:MOST_LIMITS]]


def _contradiction(pair: frozenset[str], better: Mapping[str, str]) -> Sentence:
    one, other = sorted(pair)
    sides = [
        f"{name} is clearly better by {names([metric for metric, its in better.items() if its == name])}"
        for name in (one, other)
    ]
    return Sentence(f"The metrics disagree on {one} and {other}:", f"{', '.join(sides)}.")


def sureness_sentence(found: Boards, duels: Sequence[Duel]) -> Sentence:
    """What the words `clear` and `tied` rest on."""
    mine = [one for one in duels if one.skill == OVERALL]
    if not mine:
        return Sentence("", "")
    pairs = len(list(combinations({one.generator for board in found.values() for one in board}, 2)))
    clear = sum(1 for one in mine if one.better is not None)
    prompts = max(one.n for one in mine)
    rest = (
        f"{clear} of {len(mine)} comparisons ({pairs} pair{'s' * (pairs != 1)} of generators × {len(found)} "
        f"metric{'s' * (len(found) != 1)}) are clear, on {prompts} prompts: were all generators equal, at most one "
        "sweep in 20 would show any such difference by a given metric."
    )
    return Sentence("How sure:", rest)
