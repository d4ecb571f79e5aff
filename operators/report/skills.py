"""At what generators differ, in words: the skills at which others are clearly better or worse than one."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from operators.comparison import Board, Standing
from operators.report.words import MOST_NAMES, Sentence, names
from operators.summary import OVERALL

MOST_SENTENCES = 8
CLEAR = 3.0
"""Standard errors from which a generator's shortfall at a skill is worth a sentence."""


class Against(NamedTuple):
    """How the other generators do against one at a skill, by most of the metrics that compare the two and by none the
    other way.
    """

    better: frozenset[str]
    worse: frozenset[str]
    compared: frozenset[str]


class Shortfall(NamedTuple):
    """A skill at which a generator does worse than its own level and the skill's difficulty explain."""

    generator: str
    skill: str
    size: float
    """In standard errors, the median over the metrics; negative."""


def skill_sentences(boards: Mapping[tuple[str, str], Board], order: Sequence[str], best: str) -> list[Sentence]:
    """At what the generators differ from one, the others in this order."""
    at_skills: dict[str, list[Board]] = defaultdict(list)
    for board in boards.values():
        if board.skill != OVERALL and board.duels:
            at_skills[board.skill].append(board)
    against = {skill: _against(best, at_skill) for skill, at_skill in at_skills.items()}
    others = [name for name in order if name != best]
    if not against or not others:
        return []
    by = " by most metrics" if len({board.metric for at_skill in at_skills.values() for board in at_skill}) > 1 else ""
    better = {name: [skill for skill, rivals in against.items() if name in rivals.better] for name in others}
    worse = {name: [skill for skill, rivals in against.items() if name in rivals.worse] for name in others}
    level = [name for name in others if not better[name] + worse[name]]
    compared = frozenset[str]().union(*(rivals.compared for rivals in against.values()))
    leads = {
        f"No clear difference from {best} at any skill{by}:": [name for name in level if name in compared],
        f"Not compared with {best} at any skill:": [name for name in level if name not in compared],
    }
    return [
        *(Sentence(lead, f"{names(generators)}.") for lead, generators in leads.items() if generators),
        *_skill_list(f"clearly better than {best}{by}", better, len(against), {}),
        *_skill_list(f"clearly behind {best}{by}", worse, len(against), _weak(boards)),
    ]


def _against(best: str, at_skill: Sequence[Board]) -> Against:
    better = Counter(name for board in at_skill for name in board.better_than(best))
    worse = Counter(name for board in at_skill for name in board.worse_than(best))
    pairs = [(duel.generator_a, duel.generator_b) for board in at_skill for duel in board.duels]
    compared = Counter(b if a == best else a for a, b in pairs if best in (a, b))
    return Against(
        better=frozenset(name for name, count in better.items() if 2 * count > compared[name] and not worse[name]),
        worse=frozenset(name for name, count in worse.items() if 2 * count > compared[name] and not better[name]),
        compared=frozenset(compared),
    )


def _skill_list(
    said: str, skills: Mapping[str, Sequence[str]], n_skills: int, weak: Mapping[str, Sequence[str]]
) -> list[Sentence]:
    """A sentence for each generator with the skills at which this can be said of it, and one for those beyond."""
    generators = [name for name, at_skills in skills.items() if at_skills]
    sentences = [
        Sentence(f"{name} is {said}", f"{_where(skills[name], n_skills, weak.get(name, ()))}.")
        for name in generators[:MOST_SENTENCES]
    ]
    if rest := generators[MOST_SENTENCES:]:
        sentences.append(Sentence(f"Also {said} at some skill:", f"{names(rest)}."))
    return sentences


def _where(skills: Sequence[str], n_skills: int, weak: Sequence[str]) -> str:
    """At which skills, and at which of these more than the generator's level elsewhere lets expect."""
    every = {1: f"at {skills[0]}", 2: "at both skills"}.get(n_skills, f"at all {n_skills} skills")
    where = every if len(skills) == n_skills else f"at {names(skills, 2 * MOST_NAMES)}"
    most = [skill for skill in weak if skill in skills]
    return where + (f", most of all at {names(most)}" if most and len(skills) > len(most) else "")


def _weak(boards: Mapping[tuple[str, str], Board]) -> dict[str, list[str]]:
    """By generator, the skills at which it falls short, the worst first."""
    weak: dict[str, list[str]] = defaultdict(list)
    for shortfall in shortfalls([standing for board in boards.values() for standing in board.standings]):
        weak[shortfall.generator].append(shortfall.skill)
    return weak


def shortfalls(standings: Sequence[Standing]) -> list[Shortfall]:
    """Where generators do clearly worse than their own level and the skill's difficulty explain, the worst first.

    Of each metric's means by generator and skill, what is left after both averages are taken off, over the mean's
    standard error; of these the median over the metrics.
    """
    cells: dict[str, dict[tuple[str, str], Standing]] = defaultdict(dict)
    for standing in standings:
        if standing.skill != OVERALL and standing.n > 1:
            cells[standing.metric][standing.generator, standing.skill] = standing
    sizes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for of_metric in cells.values():
        for place, size in _residuals(of_metric).items():
            sizes[place].append(size)
    medians = (Shortfall(*place, median(of_metrics)) for place, of_metrics in sizes.items())
    clear = [shortfall for shortfall in medians if shortfall.size < -CLEAR]
    return sorted(clear, key=lambda shortfall: shortfall.size)


def _residuals(cells: Mapping[tuple[str, str], Standing]) -> dict[tuple[str, str], float]:
    """One metric's shortfalls in standard errors; empty unless every generator has a mean at every skill."""
    generators, skills = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
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
