"""Who leads by each metric, in words, and at which skills others are clearly better or worse than one."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base.sentences import MOST_NAMES, Sentence, interval_sentence, names, number, plural
from plumbline.operators.results.comparison import Board, Standing, generators_of
from plumbline.operators.results.summary import OVERALL

MOST_CLOSE = 5
"""Generators that cannot be told from a leader, each with its metrics."""
NOBODY = "each that is clearly better than one is clearly worse than another."


def metric_sentences(boards: Sequence[Board]) -> list[Sentence]:
    """Who is best by each metric, how high, how sure, and who follows; metrics that say the same share a sentence."""
    alike: dict[tuple[str, ...], list[Board]] = defaultdict(list)
    for board in boards:
        alike[_claim(board)].append(board)
    return [board_sentence(said[0]) if len(said) == 1 else _shared_sentence(said) for said in alike.values()]


def _claim(board: Board) -> tuple[str, ...]:
    """What a metric says but for its numbers; what is to be noted of one metric is no other's claim."""
    scored, first = board.scored(), board.leaders()
    if len(scored) < 2:
        return ("scored", *generators_of(scored))
    if not board.duels:
        return ("compared",)
    if not board.can_tell:
        return ("few",)
    if not first:
        return ("apart", str(any(duel.better for duel in board.duels)))
    noted = board.metric if _notes(board, first[0]) else ""
    if board.best() is not None:
        return ("best", noted, first[0].generator, *generators_of(_behind(board, first[0])))
    if len(first) == 1:
        return ("leads", noted, first[0].generator)
    return ("share", noted, *sorted(generators_of(first)), "", *sorted(generators_of(board.close())))


def _shared_sentence(alike: Sequence[Board]) -> Sentence:
    """The sentence of several metrics of the same claim, with the means and without their intervals."""
    board, metrics = alike[0], _every([board.metric for board in alike])
    scored, first = board.scored(), board.leaders()
    if not scored:
        return Sentence(f"{metrics} scored nothing.", "")
    if len(scored) == 1:
        return Sentence(f"Only {scored[0].generator} was scored", f"by {_means(alike, scored[0].generator)}.")
    if not board.duels:
        return Sentence(f"{metrics} compare no two generators:", board.why_no_duel)
    if not board.can_tell:
        return Sentence(f"Too few prompts to tell who leads by {metrics}:", few_prompts(alike))
    if not first:
        apart = any(duel.better for duel in board.duels)
        rest = NOBODY if apart else f"no two are told apart. {prompts_wanted(alike)}"
        return Sentence(f"No generator leads by {metrics}:", rest.strip())
    if len(first) > 1:
        others = f" {names(generators_of(board.close()))} cannot be told from them." if board.close() else ""
        return Sentence(
            f"{names(generators_of(first))} share the lead", f"by {metrics} {_level(board, first)}.{others}"
        )
    by = _means(alike, first[0].generator)
    if board.best() is not None:
        return Sentence(f"{first[0].generator} is best", f"by {by}.{_followers(_behind(board, first[0]))}")
    close = _close_by(alike)
    rest = f" Cannot be told from it: {close}." if close else ""
    return Sentence(f"{first[0].generator} leads", f"by {by}.{rest}{_unlike(board, first[0])}")


def _means(alike: Sequence[Board], generator: str) -> str:
    """`m (0.512) and k (0.498)`: a generator's mean by each metric, with the direction where lower ones are better."""
    means = []
    for board in alike:
        mean = next(standing.mean for standing in board.standings if standing.generator == generator)
        means.append(f"{board.metric} ({number(mean)}{', lower is better' if board.lower_is_better else ''})")
    return _every(means)


def _close_by(alike: Sequence[Board]) -> str:
    """Who cannot be told from the leader, by which of the metrics that share it."""
    by: dict[str, list[str]] = defaultdict(list)
    for board in alike:
        for name in generators_of(board.close()):
            by[name].append(board.metric)
    every = "both" if len(alike) == 2 else "all of these"
    said = [f"{name} by {every if len(by[name]) == len(alike) else _every(by[name])}" for name in by]
    more = [f"and {len(said) - MOST_CLOSE} more"] if len(said) > MOST_CLOSE else []
    return "; ".join(said[:MOST_CLOSE] + more)


def _every(listed: Sequence[str]) -> str:
    """All of them, however many."""
    return names(listed, len(listed))


def board_sentence(board: Board) -> Sentence:
    """Who is best by one metric, how high, how sure, and who follows."""
    scored, first = board.scored(), board.leaders()
    if not scored:
        return Sentence(f"{board.metric} scored nothing.", "")
    if len(scored) == 1:
        return Sentence(scored[0].generator, f"has {_mean_text(scored[0])} {_by(board)}.")
    if not board.duels:
        return Sentence(f"{board.metric} compares no two generators:", board.why_no_duel)
    if not board.can_tell:
        rest = f"{few_prompts([board])} {_top_mean(board, scored)}"
        return Sentence(f"Too few prompts to tell who leads {_by(board)}:", rest)
    if not any(duel.better for duel in board.duels):
        rest = f"no two are told apart. {_top_mean(board, scored)} {prompts_wanted([board])}"
        return Sentence(f"No generator leads {_by(board)}:", rest.strip())
    if not first:
        return Sentence(f"No generator leads {_by(board)}:", NOBODY)
    return _leading_sentence(board, first)


def beside_baseline(board: Board) -> Sentence:
    """Who is clearly better or worse than the baseline by one metric, and who cannot be told from it."""
    baseline, means = board.baseline, {standing.generator: number(standing.mean) for standing in board.scored()}
    if baseline not in means:
        return Sentence(f"{board.metric} compares nothing with {baseline}:", "it did not score it.")
    lead = f"Beside {baseline} ({means[baseline]}) {_by(board)}:"
    if not board.duels:
        why = "for their settings differ." if board.unlike else "for no other generator has a score of the same prompt."
        return Sentence(lead, f"nothing, {why}")
    if not board.can_tell:
        return Sentence(lead, few_prompts([board]))
    groups = {
        "clearly better": [f"{name} ({means[name]})" for name in means if name in board.better_than(baseline)],
        "clearly worse": [f"{name} ({means[name]})" for name in means if name in board.worse_than(baseline)],
        "not told from it": board.tied_with(baseline),
        "of other settings, and not compared": board.unlike_to(baseline),
    }
    told = "; ".join(f"{said}: {names(found)}" for said, found in groups.items() if found)
    wanted = "" if any(duel.better for duel in board.duels) else prompts_wanted([board])
    return Sentence(lead, f"{told}. {wanted}".strip())


def few_prompts(boards: Sequence[Board]) -> str:
    """Why nothing could be told, and how many prompts are the least, by the metrics of which the fewest would do."""
    board = min(boards, key=lambda board: board.fewest_prompts)
    prompts, pairs = plural(max(duel.n for duel in board.duels), "prompt"), len(board.duels)
    among = f" among {pairs} comparisons" if pairs > 1 else ""
    return (
        f"even a generator that wins on every one of {prompts} cannot be told from another{among}; "
        f"{board.fewest_prompts} prompts are the least that can show a difference."
    )


def prompts_wanted(boards: Sequence[Board]) -> str:
    """About how many prompts would show the clearest difference of boards on which none is clear; empty where there is
    none.
    """
    clearest = [(duel, board) for board in boards if (duel := board.clearest()) is not None]
    if not clearest:
        return ""
    duel, board = min(clearest, key=lambda found: found[0].p_value)
    other = duel.generator_b if duel.favoured == duel.generator_a else duel.generator_a
    mean = {standing.generator: number(standing.mean) for standing in board.standings}
    by = f" by {board.metric}" if len(boards) > 1 else ""
    return (
        f"The clearest difference{by}, of {duel.favoured} ({mean[duel.favoured]}) from {other} ({mean[other]}), would "
        f"take about {duel.prompts_needed(len(board.duels)):,} prompts to show, if it is what it seems."
    )


def _leading_sentence(board: Board, first: Sequence[Standing]) -> Sentence:
    """Who leads, where somebody is clearly worse than somebody."""
    leader, close = first[0], generators_of(board.close())
    by, notes = _by(board), _notes(board, leader)
    if board.best() is not None:
        behind = _behind(board, leader)
        followers = _followers(behind, f" with {number(behind[0].mean)}" if behind else "")
        return Sentence(f"{leader.generator} is best", f"{by} ({_mean_text(leader)}).{followers}{notes}")
    if len(first) > 1:
        others = f" {names(close)} cannot be told from them." if close else ""
        rest = f"{by} {_level(board, first)}.{others} {_top_mean(board, first)}{notes}"
        return Sentence(f"{names(generators_of(first))} share the lead", rest)
    behind_it = f"; {names(close)} cannot be told from it" if close else ""
    rest = f"{by} ({_mean_text(leader)}){behind_it}.{_unlike(board, leader)}{notes}"
    return Sentence(f"{leader.generator} leads", rest)


def _level(board: Board, leaders: Sequence[Standing]) -> str:
    """Why several lead."""
    unlike = {name for leader in leaders for name in board.unlike_to(leader.generator)}
    apart = "are not all compared, as their settings differ" if unlike & {*generators_of(leaders)} else ""
    return f"and {apart or 'cannot be told apart'}"


def _unlike(board: Board, leader: Standing) -> str:
    """Who is not compared with a leader."""
    unlike = board.unlike_to(leader.generator)
    return f" Not compared with it, as their settings differ: {names(unlike)}." if unlike else ""


def _by(board: Board) -> str:
    """By which metric, and which of its scores are the better ones where these are not the higher ones."""
    return f"by {board.metric}{' (lower is better)' if board.lower_is_better else ''}"


def _top_mean(board: Board, standings: Sequence[Standing]) -> str:
    """Return a sentence with the mean of the first, as the highest mean, or as the lowest if lower is better."""
    end = "lowest" if board.lower_is_better else "highest"
    return f"The {end} mean of these is that of {standings[0].generator} ({_mean_text(standings[0])})."


def _mean_text(standing: Standing) -> str:
    """Return a mean with its interval, or with a note if the interval is undefined."""
    return f"{number(standing.mean)}, {interval_sentence(standing.low, standing.high)}"


def _behind(board: Board, best: Standing) -> list[Standing]:
    """Those that only the best is clearly better than."""
    others = tuple(standing for standing in board.standings if standing is not best)
    duels = tuple(duel for duel in board.duels if duel.better != best.generator)
    return board._replace(standings=others, duels=duels).unbeaten()


def _followers(followers: Sequence[Standing], mean: str = "") -> str:
    """That they follow the best, a single one with its mean."""
    if not followers:
        return ""
    if len(followers) == 1:
        return f" {followers[0].generator} follows{mean}."
    return f" {names(generators_of(followers))} are tied behind it."


def _notes(board: Board, leader: Standing) -> str:
    """Who has a better mean than the leader's and is clearly worse than another generator, and whether the leader's
    mean is over fewer images than it should be.
    """
    above = [standing for standing in board.scored() if standing.worth > leader.worth]
    beaten = [name for name in generators_of(above) if board.better_than(name)]
    end = "lower" if board.lower_is_better else "higher"
    note = f" Of {end} mean, but clearly worse than another prompt by prompt: {names(beaten)}." if beaten else ""
    if leader.coverage <= 0.99:
        note += f" Only {leader.coverage:.0%} of the images of {leader.generator} have a score."
    return note


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
