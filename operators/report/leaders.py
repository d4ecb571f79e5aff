"""Sentences about who leads by each metric, and about the skills at which generators differ from one of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base.sentences import MAX_NAMES, Sentence, interval_sentence, names, number, plural
from plumbline.operators.results.comparison import SIGNIFICANT, Board, LeaderboardRow, generator_names
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.ordering import fewest_pairs

MAX_CLOSE = 5
"""Generators close to a leader that are named, each with its metrics."""
NO_LEADER = "each that is clearly better than one is clearly worse than another."


def metric_sentences(boards: Sequence[Board]) -> list[Sentence]:
    """Return sentences about the leaders by each metric; metrics with the same result share a sentence."""
    alike: dict[tuple[str, ...], list[Board]] = defaultdict(list)
    for board in boards:
        alike[_claim(board)].append(board)
    return [_leader_sentence(group) for group in alike.values()]


def board_sentence(board: Board) -> Sentence:
    """Return a sentence about the leaders by one metric, their means, and who follows."""
    return _leader_sentence([board])


def _claim(board: Board) -> tuple[str, ...]:
    """Return the result of a metric without its numbers, as a key. A metric with notes shares it with no other."""
    outcome, leaders = board.outcome, board.leaders()
    if not leaders:
        return (outcome, *(generator_names(board.scored()) if outcome == "one scored" else ()))
    noted = board.metric if _notes(board, leaders[0]) else ""
    match outcome:
        case "best":
            others = generator_names(_followers(board))
        case "several lead":
            others = [*sorted(generator_names(leaders)), "", *sorted(generator_names(board.close()))]
        case _:
            others = []
    return (outcome, noted, leaders[0].generator if outcome != "several lead" else "", *others)


def _leader_sentence(boards: Sequence[Board]) -> Sentence:
    """Return the sentence of metrics with the same result. A single metric also gets intervals and notes."""
    board, is_single = boards[0], len(boards) == 1
    metrics = _join_all([board.metric for board in boards])
    by = f"by {metrics}{' (lower is better)' if is_single and board.lower_is_better else ''}"
    scored, leaders = board.scored(), board.leaders()
    match board.outcome:
        case "nothing scored":
            return Sentence(f"{metrics} scored nothing.", "")
        case "one scored":
            [row] = scored
            if is_single:
                return Sentence(row.generator, f"has {_mean_text(row)} {by}.")
            return Sentence(f"Only {row.generator} was scored", f"by {_means(boards, row.generator)}.")
        case "not compared":
            return Sentence(f"{metrics} compare{'s' if is_single else ''} no two generators:", board.why_no_duel)
        case "too few prompts":
            rest = f"{few_prompts(boards)} {_top_mean(board, scored) if is_single else ''}"
            return Sentence(f"Too few prompts to tell who leads {by}:", rest.strip())
        case "no difference":
            top = f" {_top_mean(board, scored)}" if is_single else ""
            rest = f"no two are told apart.{top} {prompts_wanted(boards)}"
            return Sentence(f"No generator leads {by}:", rest.strip())
        case "no leader":
            return Sentence(f"No generator leads {by}:", NO_LEADER)
    leader, close = leaders[0], generator_names(board.close())
    by_means = f"{by} ({_mean_text(leader)})" if is_single else f"by {_means(boards, leader.generator)}"
    notes = _notes(board, leader) if is_single else ""
    if board.outcome == "best":
        return Sentence(f"{leader.generator} is best", f"{by_means}.{_followers_text(board, mean=is_single)}{notes}")
    unlike = {name for row in leaders for name in board.unlike_to(row.generator)}
    if board.outcome == "several lead":
        is_unlike = bool(unlike & {*generator_names(leaders)})
        tied = "are not all compared, as their settings differ" if is_unlike else "cannot be told apart"
        others = f" {names(close)} cannot be told from them." if close else ""
        top = f" {_top_mean(board, leaders)}" if is_single else ""
        return Sentence(f"{names(generator_names(leaders))} share the lead", f"{by} and {tied}.{others}{top}{notes}")
    if is_single:
        others = f"; {names(close)} cannot be told from it." if close else "."
    else:
        others = f". Cannot be told from it: {close_by}." if (close_by := _close_by(boards)) else "."
    if unlike:
        others += f" Not compared with it, as their settings differ: {names(board.unlike_to(leader.generator))}."
    return Sentence(f"{leader.generator} leads", f"{by_means}{others}{notes}")


def _means(boards: Sequence[Board], generator: str) -> str:
    """Return `m (0.512) and k (0.498, lower is better)`: a generator's mean by each metric."""
    means = []
    for board in boards:
        mean = next(row.mean for row in board.rows if row.generator == generator)
        means.append(f"{board.metric} ({number(mean)}{', lower is better' if board.lower_is_better else ''})")
    return _join_all(means)


def _close_by(boards: Sequence[Board]) -> str:
    """Return the generators that are close to the leader, each with the metrics by which it is."""
    by: dict[str, list[str]] = defaultdict(list)
    for board in boards:
        for name in generator_names(board.close()):
            by[name].append(board.metric)
    every = "both" if len(boards) == 2 else "all of these"
    parts = [f"{name} by {every if len(by[name]) == len(boards) else _join_all(by[name])}" for name in by]
    more = [f"and {len(parts) - MAX_CLOSE} more"] if len(parts) > MAX_CLOSE else []
    return "; ".join(parts[:MAX_CLOSE] + more)


def _join_all(listed: Sequence[str]) -> str:
    """Return `a, b and c` without leaving any out."""
    return names(listed, len(listed))


def baseline_sentence(board: Board) -> Sentence:
    """Return a sentence about the generators that are clearly better or worse than the baseline by one metric."""
    baseline, means = board.baseline, {row.generator: number(row.mean) for row in board.scored()}
    if baseline not in means:
        return Sentence(f"{board.metric} compares nothing with {baseline}:", "it did not score it.")
    direction = " (lower is better)" if board.lower_is_better else ""
    lead = f"Beside {baseline} ({means[baseline]}) by {board.metric}{direction}:"
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
    parts = "; ".join(f"{group}: {names(found)}" for group, found in groups.items() if found)
    wanted = "" if board.differs else prompts_wanted([board])
    return Sentence(lead, f"{parts}. {wanted}".strip())


def few_prompts(boards: Sequence[Board]) -> str:
    """Return why no difference can be clear, for the board that needs the fewest prompts (or else has the most)."""
    prompts = {board.metric: max(duel.n for duel in board.duels) for board in boards}
    board = min(boards, key=lambda board: (board.fewest_prompts, -prompts[board.metric]))
    n_prompts, n_comparisons = prompts[board.metric], len(board.duels)
    return f"{explain_too_few(n_prompts, n_comparisons, among=n_comparisons > 1)} show a difference."


def explain_too_few(
    n_prompts: int,
    n_comparisons: int,
    winner: str = "a generator that wins",
    verdict: str = "cannot be told from another",
    *,
    among: bool = True,
) -> str:
    """Return the beginning of a sentence: a winner on every prompt does not differ clearly, and how many prompts can.

    `among` names the number of comparisons.
    """
    comparisons = f" among {n_comparisons} comparisons" if among else ""
    return (
        f"even {winner} on every one of {plural(n_prompts, 'prompt')} {verdict}{comparisons}; "
        f"{fewest_pairs(n_comparisons, SIGNIFICANT)} prompts are the least that can"
    )


def prompts_wanted(boards: Sequence[Board]) -> str:
    """Return about how many prompts would make the clearest difference significant, if none is; empty without one."""
    clearest = [(duel, board) for board in boards if (duel := board.clearest()) is not None]
    if not clearest:
        return ""
    duel, board = min(clearest, key=lambda found: found[0].p_value)
    other = duel.generator_b if duel.favoured == duel.generator_a else duel.generator_a
    mean = {row.generator: number(row.mean) for row in board.rows}
    by = f" by {board.metric}" if len(boards) > 1 else ""
    return (
        f"The clearest difference{by}, of {duel.favoured} ({mean[duel.favoured]}) from {other} ({mean[other]}), would "
        f"take about {duel.prompts_needed(len(board.duels)):,} prompts to show, if it is what it seems."
    )


def _top_mean(board: Board, rows: Sequence[LeaderboardRow]) -> str:
    """Return a sentence with the first row's mean: the highest, or the lowest if lower is better."""
    end = "lowest" if board.lower_is_better else "highest"
    return f"The {end} mean of these is that of {rows[0].generator} ({_mean_text(rows[0])})."


def _mean_text(row: LeaderboardRow) -> str:
    return f"{number(row.mean)}, {interval_sentence(row.low, row.high)}"


def _followers(board: Board) -> list[LeaderboardRow]:
    """Return the generators that only the best generator beats."""
    return board.without(board.leaders()[0].generator).unbeaten()


def _followers_text(board: Board, *, mean: bool) -> str:
    """Return who follows the best generator; a single follower with its mean if wanted."""
    followers = _followers(board)
    if not followers:
        return ""
    if len(followers) == 1:
        return f" {followers[0].generator} follows{f' with {number(followers[0].mean)}' if mean else ''}."
    return f" {names(generator_names(followers))} are tied behind it."


def _notes(board: Board, leader: LeaderboardRow) -> str:
    """Return sentences about beaten generators with a better mean than the leader's, and about missing scores."""
    above = [row for row in board.scored() if row.worth > leader.worth]
    beaten = [name for name in generator_names(above) if board.better_than(name)]
    end = "lower" if board.lower_is_better else "higher"
    note = f" Of {end} mean, but clearly worse than another prompt by prompt: {names(beaten)}." if beaten else ""
    if leader.coverage <= 0.99:
        note += f" Only {leader.coverage:.0%} of the images of {leader.generator} have a score."
    return note


MAX_SENTENCES = 8
CLEAR = 3.0
"""Smallest shortfall of a generator at a skill, in standard errors, that the report mentions."""


class SkillRivals(NamedTuple):
    """Generators compared with a reference generator at a skill, over several metrics."""

    better: frozenset[str]
    """Clearly better than the reference by most of the metrics that compare the two, and clearly worse by none."""
    worse: frozenset[str]
    """Clearly worse by most of these metrics, and clearly better by none."""
    compared: frozenset[str]
    could_differ: frozenset[str]
    """Compared by some metric on enough prompts for a clear difference."""


def skill_sentences(boards: Mapping[tuple[str, str], Board], order: Sequence[str], best: str) -> list[Sentence]:
    """Return sentences about the skills at which generators differ from a reference generator.

    Args:
        boards: The boards by metric and skill.
        order: The generators in the order in which they are named.
        best: The reference generator.
    """
    at_skills: dict[str, list[Board]] = defaultdict(list)
    for board in boards.values():
        if board.skill != OVERALL and board.duels:
            at_skills[board.skill].append(board)
    rivals_at = {skill: _find_rivals(best, at_skill) for skill, at_skill in at_skills.items()}
    others = [name for name in order if name != best]
    if not rivals_at or not others:
        return []
    by = " by most metrics" if len({board.metric for at_skill in at_skills.values() for board in at_skill}) > 1 else ""
    better = {name: [skill for skill, rivals in rivals_at.items() if name in rivals.better] for name in others}
    worse = {name: [skill for skill, rivals in rivals_at.items() if name in rivals.worse] for name in others}
    level = [name for name in others if not better[name] + worse[name]]
    compared = frozenset[str]().union(*(rivals.compared for rivals in rivals_at.values()))
    could_differ = frozenset[str]().union(*(rivals.could_differ for rivals in rivals_at.values()))
    leads = {
        f"No clear difference from {best} at any skill{by}:": [name for name in level if name in could_differ],
        f"Too few prompts at every skill to tell from {best}:": [
            name for name in level if name in compared - could_differ
        ],
        f"Not compared with {best} at any skill:": [name for name in level if name not in compared],
    }
    return [
        *(Sentence(lead, f"{names(generators)}.") for lead, generators in leads.items() if generators),
        *_skill_list(f"clearly better than {best}{by}", better, len(rivals_at), {}),
        *_skill_list(f"clearly behind {best}{by}", worse, len(rivals_at), _weak_skills(boards)),
    ]


def _find_rivals(best: str, at_skill: Sequence[Board]) -> SkillRivals:
    better = Counter(name for board in at_skill for name in board.better_than(best))
    worse = Counter(name for board in at_skill for name in board.worse_than(best))
    compared = _count_comparisons(best, at_skill)
    return SkillRivals(
        better=frozenset(name for name, count in better.items() if 2 * count > compared[name] and not worse[name]),
        worse=frozenset(name for name, count in worse.items() if 2 * count > compared[name] and not better[name]),
        compared=frozenset(compared),
        could_differ=frozenset(_count_comparisons(best, [board for board in at_skill if board.can_tell])),
    )


def _count_comparisons(best: str, at_skill: Sequence[Board]) -> Counter[str]:
    """Count the boards on which each generator is compared with the reference."""
    pairs = [(duel.generator_a, duel.generator_b) for board in at_skill for duel in board.duels]
    return Counter(b if a == best else a for a, b in pairs if best in (a, b))


def _skill_list(
    claim: str, skills: Mapping[str, Sequence[str]], n_skills: int, weak: Mapping[str, Sequence[str]]
) -> list[Sentence]:
    """Return a sentence with the skills of each of the first generators, and one that names the other generators.

    The `claim` is what holds for a generator at these skills. `weak` has its unusually weak skills.
    """
    generators = [name for name, at_skills in skills.items() if at_skills]
    sentences = [
        Sentence(f"{name} is {claim}", f"{_describe_skills(skills[name], n_skills, weak.get(name, ()))}.")
        for name in generators[:MAX_SENTENCES]
    ]
    if rest := generators[MAX_SENTENCES:]:
        sentences.append(Sentence(f"Also {claim} at some skill:", f"{names(rest)}."))
    return sentences


def _describe_skills(skills: Sequence[str], n_skills: int, weak: Sequence[str]) -> str:
    """Return the skills in words, and those of them at which the generator is unusually weak."""
    every = {1: f"at {skills[0]}", 2: "at both skills"}.get(n_skills, f"at all {n_skills} skills")
    where = every if len(skills) == n_skills else f"at {names(skills, 2 * MAX_NAMES)}"
    most = [skill for skill in weak if skill in skills]
    return where + (f", most of all at {names(most)}" if most and len(skills) > len(most) else "")


def _weak_skills(boards: Mapping[tuple[str, str], Board]) -> dict[str, list[str]]:
    """Return each generator's unusually weak skills, the weakest first.

    A skill is weak if the median of its shortfalls over the metrics is more than CLEAR standard errors.
    """
    counted = [row for board in boards.values() for row in board.rows if row.n > 1 and row.skill != OVERALL]
    frame = pd.DataFrame(counted, columns=LeaderboardRow._fields)
    sizes = [_shortfalls(of_metric).stack() for _, of_metric in frame.groupby("metric")]
    weak: dict[str, list[str]] = defaultdict(list)
    if sizes:
        medians = pd.concat(sizes).groupby(level=["generator", "skill"]).median().sort_values(kind="stable")
        for generator, skill in medians.index[medians < -CLEAR]:
            weak[generator].append(skill)
    return weak


def _shortfalls(of_metric: pd.DataFrame) -> pd.DataFrame:
    """Return the residuals of one metric's means by generator (rows) and skill (columns), in standard errors.

    The medians of the generator and of the skill are subtracted from each mean. The result is empty unless every
    generator has a mean at every skill.
    """
    errors = (of_metric["high"] - of_metric["low"]) / (2 * 1.96)
    oriented = of_metric.assign(error=errors, worth=of_metric["direction"] * of_metric["mean"])
    wide = oriented.pivot(index="generator", columns="skill", values=["worth", "error"])
    means, error = wide["worth"], wide["error"]
    if means.isna().any(axis=None) or len(means) < 3 or len(means.columns) < 2:
        return means.iloc[:0]
    left = means.sub(means.median(axis=1), axis=0).sub(means.median(), axis=1) + np.median(means)
    return left / error.where(error > 1e-9, math.inf)
