"""Writes sentences about who leads on each metric, and about skills at which generators differ from a reference."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from plumbline.operators.base.sentences import (
    MAX_LISTED_NAMES,
    Sentence,
    describe_interval,
    format_names,
    format_number,
    format_quantity,
)
from plumbline.operators.results.comparison import SIGNIFICANCE_LEVEL, Board, LeaderboardRow, list_generator_names
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.ordering import compute_min_pairs

MAX_CLOSE_GENERATORS = 5
"""Maximum number of generators close to a leader that are listed, each with its metrics."""
NO_LEADER_REASON = "each generator that beats another is itself beaten."


def describe_leaders(boards: Sequence[Board]) -> list[Sentence]:
    """Return sentences about the leaders on each metric; metrics with the same result share a sentence."""
    alike: dict[tuple[str, ...], list[Board]] = defaultdict(list)
    for board in boards:
        alike[_make_result_key(board)].append(board)
    return [_describe_shared_result(group) for group in alike.values()]


def _make_result_key(board: Board) -> tuple[str, ...]:
    """Return a key that is shared by metrics with the same leaders and the same generators close to the leaders.

    Their means may differ. A metric with notes has a key of its own.
    """
    outcome, leaders = board.outcome, board.list_leaders()
    if not leaders:
        return (outcome, *(list_generator_names(board.list_scored_rows()) if outcome == "one scored" else ()))
    noted = board.metric if _format_leader_notes(board, leaders[0]) else ""
    if outcome == "several lead":
        return (
            outcome,
            noted,
            *sorted(list_generator_names(leaders)),
            "",
            *sorted(list_generator_names(board.list_close_rows())),
        )
    return (
        outcome,
        noted,
        leaders[0].generator,
        *(list_generator_names(_find_followers(board)) if outcome == "best" else ()),
    )


def _describe_shared_result(boards: Sequence[Board]) -> Sentence:
    board, is_single = boards[0], len(boards) == 1
    metrics = _join_names([board.metric for board in boards])
    by = f"by {metrics}{' (lower is better)' if is_single and board.lower_is_better else ''}"
    scored, leaders = board.list_scored_rows(), board.list_leaders()
    match board.outcome:
        case "nothing scored":
            return Sentence(f"{metrics} scored nothing.", "")
        case "one scored":
            [row] = scored
            if is_single:
                return Sentence(row.generator, f"has {_describe_mean(row)} {by}.")
            return Sentence(f"Only {row.generator} was scored", f"by {_describe_means(boards, row.generator)}.")
        case "not compared":
            return Sentence(f"{metrics} compare{'s' if is_single else ''} no two generators:", board.no_duel_reason)
        case "too few prompts":
            rest = f"{explain_no_clear_difference(boards)} {_describe_top_mean(board, scored) if is_single else ''}"
            return Sentence(f"Too few prompts to say who leads {by}:", rest.strip())
        case "no difference":
            top = f" {_describe_top_mean(board, scored)}" if is_single else ""
            rest = f"no two differ clearly.{top} {estimate_prompts_needed(boards)}"
            return Sentence(f"No generator leads {by}:", rest.strip())
        case "no leader":
            return Sentence(f"No generator leads {by}:", NO_LEADER_REASON)
    leader, close = leaders[0], list_generator_names(board.list_close_rows())
    by_means = f"{by} ({_describe_mean(leader)})" if is_single else f"by {_describe_means(boards, leader.generator)}"
    notes = _format_leader_notes(board, leader) if is_single else ""
    if board.outcome == "best":
        followers = list_generator_names(_find_followers(board))
        second = ""
        if len(followers) == 1:
            mean = f" with {format_number(_find_followers(board)[0].mean)}" if is_single else ""
            second = f" {followers[0]} follows{mean}."
        elif followers:
            second = f" {format_names(followers)} are tied behind it."
        return Sentence(f"{leader.generator} is best", f"{by_means}.{second}{notes}")
    unlike = {name for row in leaders for name in board.list_uncomparable_generators(row.generator)}
    if board.outcome == "several lead":
        is_unlike = bool(unlike & {*list_generator_names(leaders)})
        tied = "are not all compared, as their settings differ" if is_unlike else "cannot be told apart"
        others = f" No clear difference from {format_names(close)}." if close else ""
        top = f" {_describe_top_mean(board, leaders)}" if is_single else ""
        return Sentence(
            f"{format_names(list_generator_names(leaders))} share the lead", f"{by} and {tied}.{others}{top}{notes}"
        )
    if is_single:
        others = f"; no clear difference from {format_names(close)}." if close else "."
    else:
        others = f". No clear difference from it: {close_by}." if (close_by := _list_close_generators(boards)) else "."
    if unlike:
        excluded = format_names(board.list_uncomparable_generators(leader.generator))
        others += f" Not compared with it, as their settings differ: {excluded}."
    return Sentence(f"{leader.generator} leads", f"{by_means}{others}{notes}")


def _describe_means(boards: Sequence[Board], generator: str) -> str:
    means = []
    for board in boards:
        mean = next(row.mean for row in board.rows if row.generator == generator)
        means.append(f"{board.metric} ({format_number(mean)}{', lower is better' if board.lower_is_better else ''})")
    return _join_names(means)


def _list_close_generators(boards: Sequence[Board]) -> str:
    by: dict[str, list[str]] = defaultdict(list)
    for board in boards:
        for name in list_generator_names(board.list_close_rows()):
            by[name].append(board.metric)
    every = "both" if len(boards) == 2 else "all of these"
    parts = [f"{name} by {every if len(by[name]) == len(boards) else _join_names(by[name])}" for name in by]
    more = [f"and {len(parts) - MAX_CLOSE_GENERATORS} more"] if len(parts) > MAX_CLOSE_GENERATORS else []
    return "; ".join(parts[:MAX_CLOSE_GENERATORS] + more)


def _join_names(listed: Sequence[str]) -> str:
    """Return all items as `a, b and c`, without shortening the list."""
    return format_names(listed, len(listed))


def describe_baseline_comparison(board: Board) -> Sentence:
    """Return a sentence that compares the other generators with the baseline on one metric."""
    baseline, means = board.baseline, {row.generator: format_number(row.mean) for row in board.list_scored_rows()}
    if baseline not in means:
        return Sentence(f"{board.metric} compares nothing with {baseline}:", "the metric did not score it.")
    direction = " (lower is better)" if board.lower_is_better else ""
    lead = f"Compared with {baseline} ({means[baseline]}) by {board.metric}{direction}:"
    if not board.duels:
        no_common = "no other generator has a score for the same prompt."
        return Sentence(lead, f"nothing, because {'their settings differ.' if board.unlike else no_common}")
    if not board.can_tell:
        return Sentence(lead, explain_no_clear_difference([board]))
    groups = {
        "clearly better": [f"{name} ({means[name]})" for name in means if name in board.list_clearly_better(baseline)],
        "clearly worse": [f"{name} ({means[name]})" for name in means if name in board.list_clearly_worse(baseline)],
        "no clear difference": board.list_tied_generators(baseline),
        "not compared (other settings)": board.list_uncomparable_generators(baseline),
    }
    parts = "; ".join(f"{group}: {format_names(found)}" for group, found in groups.items() if found)
    needed = "" if board.has_clear_difference else estimate_prompts_needed([board])
    return Sentence(lead, f"{parts}. {needed}".strip())


def explain_no_clear_difference(boards: Sequence[Board]) -> str:
    """Explain why no difference can be clear, using the metric that comes closest to having enough prompts."""
    prompts = {board.metric: max(duel.n for duel in board.duels) for board in boards}
    board = min(boards, key=lambda board: (board.min_prompts, -prompts[board.metric]))
    return f"{explain_too_few_prompts(prompts[board.metric], len(board.duels))}."


def explain_too_few_prompts(n_prompts: int, n_comparisons: int) -> str:
    """Return text that says that so few prompts cannot show a clear difference, and how many prompts are needed."""
    among = f" among {n_comparisons} comparisons" if n_comparisons > 1 else ""
    return (
        f"even if all of {format_quantity(n_prompts, 'prompt')} agreed, no difference would be clear{among}; "
        f"at least {compute_min_pairs(n_comparisons, SIGNIFICANCE_LEVEL)} prompts are needed"
    )


def estimate_prompts_needed(boards: Sequence[Board]) -> str:
    """Return a text that estimates how many prompts would make the clearest difference significant.

    The text is empty if there are no differences.
    """
    clearest = [(duel, board) for board in boards if (duel := board.find_clearest_duel()) is not None]
    if not clearest:
        return ""
    duel, board = min(clearest, key=lambda found: found[0].p_value)
    other = duel.generator_b if duel.favoured == duel.generator_a else duel.generator_a
    mean = {row.generator: format_number(row.mean) for row in board.rows}
    by = f" by {board.metric}" if len(boards) > 1 else ""
    return (
        f"The clearest difference{by} is between {duel.favoured} ({mean[duel.favoured]}) and {other} ({mean[other]}). "
        f"If it is real, about {duel.estimate_prompts_needed(len(board.duels)):,} prompts would show it."
    )


def _describe_top_mean(board: Board, rows: Sequence[LeaderboardRow]) -> str:
    end = "lowest" if board.lower_is_better else "highest"
    return f"{rows[0].generator} has the {end} mean of these ({_describe_mean(rows[0])})."


def _describe_mean(row: LeaderboardRow) -> str:
    return f"{format_number(row.mean)}, {describe_interval(row.low, row.high)}"


def _find_followers(board: Board) -> list[LeaderboardRow]:
    return board.leave_out(board.list_leaders()[0].generator).list_unbeaten_rows()


def _format_leader_notes(board: Board, leader: LeaderboardRow) -> str:
    above = [row for row in board.list_scored_rows() if row.worth > leader.worth]
    beaten = [name for name in list_generator_names(above) if board.list_clearly_better(name)]
    end = "Lower" if board.lower_is_better else "Higher"
    note = f" {end} mean, but clearly worse than another prompt by prompt: {format_names(beaten)}." if beaten else ""
    if leader.coverage <= 0.99:
        note += f" Only {leader.coverage:.0%} of the images of {leader.generator} have a score."
    return note


MAX_SENTENCES = 8
MIN_SHORTFALL = 3.0
"""Minimum shortfall of a generator at a skill, in standard errors, for the report to mention it."""


def describe_skills(boards: Mapping[tuple[str, str], Board], order: Sequence[str], best: str) -> list[Sentence]:
    """Return sentences about the skills at which generators differ clearly from a reference, `best`.

    `boards` is keyed by metric and skill. The sentences list generators in the given `order`.
    """
    at_skills: dict[str, list[Board]] = defaultdict(list)
    for board in boards.values():
        if board.skill != OVERALL and board.duels:
            at_skills[board.skill].append(board)
    others = [name for name in order if name != best]
    if not at_skills or not others:
        return []
    better: dict[str, list[str]] = {name: [] for name in others}
    worse: dict[str, list[str]] = {name: [] for name in others}
    compared, could_differ = set[str](), set[str]()
    for skill, at_skill in at_skills.items():
        n_compared = Counter(rival for board in at_skill for rival in _list_rivals(board, best))
        wins = Counter(name for board in at_skill for name in board.list_clearly_better(best))
        losses = Counter(name for board in at_skill for name in board.list_clearly_worse(best))
        compared |= {*n_compared}
        could_differ |= {rival for board in at_skill if board.can_tell for rival in _list_rivals(board, best)}
        # A generator is better at a skill if it is better on most metrics that compare the two, and worse on none.
        for counts, opposite, skills in ((wins, losses, better), (losses, wins, worse)):
            for name, count in counts.items():
                if 2 * count > n_compared[name] and not opposite[name]:
                    skills[name].append(skill)
    by = " by most metrics" if len({board.metric for at_skill in at_skills.values() for board in at_skill}) > 1 else ""
    level = [name for name in others if not better[name] + worse[name]]
    leads = {
        f"No clear difference from {best} at any skill{by}:": [name for name in level if name in could_differ],
        f"Too few prompts at every skill to compare with {best}:": [
            name for name in level if name in compared - could_differ
        ],
        f"Not compared with {best} at any skill:": [name for name in level if name not in compared],
    }
    return [
        *(Sentence(lead, f"{format_names(generators)}.") for lead, generators in leads.items() if generators),
        *_describe_skill_lists(f"clearly better than {best}{by}", better, len(at_skills), {}),
        *_describe_skill_lists(f"clearly behind {best}{by}", worse, len(at_skills), _find_weak_skills(boards)),
    ]


def _list_rivals(board: Board, best: str) -> list[str]:
    """Return the generators that a leaderboard compares with the reference, `best`."""
    pairs = [(duel.generator_a, duel.generator_b) for duel in board.duels]
    return [b if a == best else a for a, b in pairs if best in (a, b)]


def _describe_skill_lists(
    claim: str, skills: Mapping[str, Sequence[str]], n_skills: int, weak: Mapping[str, Sequence[str]]
) -> Iterator[Sentence]:
    generators = [name for name, at_skills in skills.items() if at_skills]
    every = {1: "at {}", 2: "at both skills"}.get(n_skills, f"at all {n_skills} skills")
    for name in generators[:MAX_SENTENCES]:
        own = skills[name]
        where = every.format(own[0]) if len(own) == n_skills else f"at {format_names(own, 2 * MAX_LISTED_NAMES)}"
        weakest = [skill for skill in weak.get(name, ()) if skill in own]
        most = f", most of all at {format_names(weakest)}" if weakest and len(own) > len(weakest) else ""
        yield Sentence(f"{name} is {claim}", f"{where}{most}.")
    if rest := generators[MAX_SENTENCES:]:
        yield Sentence(f"Also {claim} at some skill:", f"{format_names(rest)}.")


def _find_weak_skills(boards: Mapping[tuple[str, str], Board]) -> dict[str, list[str]]:
    """Return each generator's unusually weak skills, weakest first.

    A shortfall is the residual of a mean, in standard errors, after subtracting the medians of the generator and of the
    skill. A skill is weak if the median of its shortfalls over the metrics exceeds MIN_SHORTFALL.
    """
    counted = [row for board in boards.values() for row in board.rows if row.n > 1 and row.skill != OVERALL]
    frame = pd.DataFrame(counted, columns=LeaderboardRow._fields)
    residuals = []
    for _, rows in frame.groupby("metric"):
        errors = (rows["high"] - rows["low"]) / (2 * 1.96)
        worths = rows.assign(error=errors, worth=rows["direction"] * rows["mean"])
        wide = worths.pivot(index="generator", columns="skill", values=["worth", "error"])
        means, error = wide["worth"], wide["error"]
        # Medians require at least three generators, two skills, and a mean in every cell.
        if not means.isna().any(axis=None) and len(means) >= 3 and len(means.columns) >= 2:
            left = means.sub(means.median(axis=1), axis=0).sub(means.median(), axis=1) + np.median(means)
            residuals.append((left / error.where(error > 1e-9, math.inf)).stack())
    weak: dict[str, list[str]] = defaultdict(list)
    if residuals:
        medians = pd.concat(residuals).groupby(level=["generator", "skill"]).median().sort_values(kind="stable")
        for generator, skill in medians.index[medians < -MIN_SHORTFALL]:
            weak[generator].append(skill)
    return weak
