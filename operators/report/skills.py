"""At what generators differ, in words: the skills at which others are clearly better or worse than one."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.comparison import Board, Standing
from plumbline.operators.summary import OVERALL
from plumbline.operators.words import MOST_NAMES, Sentence, names

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
    could_be_told: frozenset[str]
    """Those of them that some outcome on so many prompts would have told apart."""


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
    could_be_told = frozenset[str]().union(*(rivals.could_be_told for rivals in against.values()))
    leads = {
        f"No clear difference from {best} at any skill{by}:": [name for name in level if name in could_be_told],
        f"Too few prompts at every skill to tell from {best}:": [
            name for name in level if name in compared - could_be_told
        ],
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
    compared = _compared(best, at_skill)
    return Against(
        better=frozenset(name for name, count in better.items() if 2 * count > compared[name] and not worse[name]),
        worse=frozenset(name for name, count in worse.items() if 2 * count > compared[name] and not better[name]),
        compared=frozenset(compared),
        could_be_told=frozenset(_compared(best, [board for board in at_skill if board.can_tell])),
    )


def _compared(best: str, at_skill: Sequence[Board]) -> Counter[str]:
    """By how many of the boards each generator is compared with one."""
    pairs = [(duel.generator_a, duel.generator_b) for board in at_skill for duel in board.duels]
    return Counter(b if a == best else a for a, b in pairs if best in (a, b))


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
    """By generator, the skills at which it does clearly worse than its own level and the skill's difficulty explain,
    the worst first: by the median of its shortfalls over the metrics.
    """
    counted = [standing for board in boards.values() for standing in board.standings if standing.n > 1]
    frame = pd.DataFrame([standing for standing in counted if standing.skill != OVERALL], columns=Standing._fields)
    sizes = [_shortfalls(of_metric).stack() for _, of_metric in frame.groupby("metric")]
    weak: dict[str, list[str]] = defaultdict(list)
    if sizes:
        medians = pd.concat(sizes).groupby(level=["generator", "skill"]).median().sort_values(kind="stable")
        for generator, skill in medians.index[medians < -CLEAR]:
            weak[generator].append(skill)
    return weak


def _shortfalls(of_metric: pd.DataFrame) -> pd.DataFrame:
    """Of one metric's means by generator and skill, what is left after both medians are taken off, in standard errors;
    empty unless every generator has a mean at every skill.
    """
    errors = (of_metric["high"] - of_metric["low"]) / (2 * 1.96)
    turned = of_metric.assign(error=errors, worth=of_metric["direction"] * of_metric["mean"])
    wide = turned.pivot(index="generator", columns="skill", values=["worth", "error"])
    means, error = wide["worth"], wide["error"]
    if means.isna().any(axis=None) or len(means) < 3 or len(means.columns) < 2:
        return means.iloc[:0]
    left = means.sub(means.median(axis=1), axis=0).sub(means.median(), axis=1) + np.median(means)
    return left / error.where(error > 1e-9, math.inf)
