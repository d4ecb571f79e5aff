"""States a run's conclusions: the best generator, overall and by skill, how certain it is, and where metrics disagree.

Every sentence about leaders, ties and differences is based on the pairwise tests alone.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from plumbline.operators.base.sentences import Sentence, format_names, format_quantity, format_signed
from plumbline.operators.report.leaders import (
    NO_LEADER_REASON,
    describe_baseline_comparison,
    describe_leaders,
    describe_skills,
)
from plumbline.operators.results.comparison import (
    Board,
    Duel,
    describe_tests,
    describe_uncompared_pairs,
    list_generator_names,
)
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.repeats import WIDTH_WITH_TWICE_THE_PROMPTS, RepeatVariances

MAX_PAIRS = 5
MAX_UNLIKE_PAIRS = 3
"""Maximum number of pairs of generators with different settings that the headline lists."""

Boards = Mapping[str, Board]
"""The metrics' leaderboards over all prompts."""


class Conclusions(NamedTuple):
    """A run's conclusions: sentences about leaders, agreement, skills and certainty, in reading order."""

    headline: Sentence
    by_metric: list[Sentence]
    by_skill: list[Sentence]
    agreement: list[Sentence]
    certainty: Sentence

    def write_sentences(self) -> list[Sentence]:
        every = [self.headline, *self.by_metric, *self.by_skill, *self.agreement, self.certainty]
        return [sentence for sentence in every if str(sentence)]


def select_overall_boards(boards: Mapping[tuple[str, str], Board], metrics: Sequence[str] = ()) -> dict[str, Board]:
    """Return each metric's leaderboard over all prompts, starting with `metrics` in the given order."""
    overall = {metric: board for (metric, skill), board in boards.items() if skill == OVERALL}
    return {metric: overall[metric] for metric in dict.fromkeys([*metrics, *overall]) if metric in overall}


def draw_conclusions(boards: Mapping[tuple[str, str], Board], overall: Boards, failed: str = "") -> Conclusions:
    """Return all conclusions of a run; `failed` describes the failed rows, if there are any."""
    each = list(overall.values())
    baseline = each[0].baseline if each else ""
    first = write_headline(overall, failed)
    if unlike := describe_uncompared_pairs(duel for board in each for duel in board.unlike):
        note = f"Not compared, as their settings differ: {format_names(unlike, MAX_UNLIKE_PAIRS)}."
        first = first._replace(rest=f"{first.rest} {note}".strip())
    return Conclusions(
        headline=first,
        by_metric=[describe_baseline_comparison(board) for board in each] if baseline else describe_leaders(each),
        by_skill=describe_skills(boards, list(compute_mean_ranks(overall)), baseline or _find_reference(overall)),
        agreement=[*describe_agreement(overall), *describe_contrary_pairs(overall)],
        certainty=describe_certainty(overall),
    )


def _list_duels(overall: Boards) -> list[Duel]:
    return [duel for board in overall.values() for duel in board.duels]


def compute_mean_ranks(overall: Boards) -> dict[str, float | None]:
    """Return each generator's mean rank over the metrics, best first.

    A generator that some metric did not score has the mean rank None and comes last. Metrics without any score are
    ignored.
    """
    ranks: dict[str, list[int]] = {name: [] for board in overall.values() for name in list_generator_names(board.rows)}
    for board in overall.values():
        for row in board.list_scored_rows():
            ranks[row.generator].append(row.rank or 0)
    scoring = sum(bool(board.list_scored_rows()) for board in overall.values())
    means = {name: mean(of_metrics) if 0 < len(of_metrics) == scoring else None for name, of_metrics in ranks.items()}
    return dict(sorted(means.items(), key=lambda rank: (math.inf if rank[1] is None else rank[1], rank[0])))


def _count_best_and_leading(overall: Boards) -> tuple[Counter[str], Counter[str]]:
    best = Counter(first.generator for board in overall.values() if (first := board.find_best_row()))
    return best, Counter(name for board in overall.values() for name in list_generator_names(board.list_leaders()))


def _find_reference(overall: Boards) -> str:
    """Return the generator that is best on the most metrics, for the headline and for comparisons by skill.

    Ties are broken by the number of metrics that the generator leads, alone or jointly, and then by the mean rank.
    """
    best, leading = _count_best_and_leading(overall)
    return max(compute_mean_ranks(overall), key=lambda name: (best[name], leading[name]), default="")


def write_headline(overall: Boards, failed: str = "") -> Sentence:
    """Return the main conclusion in one line; `failed` describes the failed rows, if there are any."""
    each = list(overall.values())
    scored = list(dict.fromkeys(name for board in each for name in list_generator_names(board.list_scored_rows())))
    if not scored:
        return Sentence("Nothing could be scored.", f"Failed rows: {failed}" if failed else "")
    if len(scored) == 1:
        return Sentence("One generator was scored:", f"{scored[0]}. There is nothing to rank it against.")
    if not _list_duels(overall):
        if any(board.unlike for board in each):
            return Sentence("No two generators are compared.", "")
        return Sentence("No two generators can be compared.", "No metric scored two of them on the same prompt.")
    if each[0].baseline:
        return _write_baseline_headline(overall, each[0].baseline)
    if not any(board.has_clear_difference for board in each):
        able = any(board.can_tell for board in each)
        lead = "No generator is clearly better than another" if able else "Too few prompts to compare generators"
        return Sentence(lead, f"{_describe_metrics(overall)}.")
    return _write_winner_headline(overall)


def _describe_metrics(overall: Boards) -> str:
    return f"by any of {len(overall)} metrics" if len(overall) > 1 else f"by {next(iter(overall))}"


def _write_baseline_headline(overall: Boards, baseline: str) -> Sentence:
    each, count, by = overall.values(), len(overall), _describe_metrics(overall)
    better = Counter(name for board in each for name in board.list_clearly_better(baseline))
    worse = Counter(name for board in each for name in board.list_clearly_worse(baseline))
    if better:
        behind = f" Clearly worse: {_format_counts(worse, count)}." if worse else ""
        return Sentence(f"Clearly better than {baseline}:", f"{_format_counts(better, count)}.{behind}")
    if worse:
        rest = f"{by}. Clearly worse: {_format_counts(worse, count)}."
        return Sentence(f"No generator is clearly better than {baseline}", rest)
    if any(board.can_tell for board in each):
        return Sentence(f"No generator clearly differs from {baseline}", f"{by}.")
    return Sentence(f"Too few prompts to compare with {baseline}", f"{by}.")


def _write_winner_headline(overall: Boards) -> Sentence:
    first, count = _find_reference(overall), len(overall)
    best, leading = _count_best_and_leading(overall)
    if len(best) > 1:
        return Sentence("The metrics disagree on the best generator:", f"{_format_counts(best, count)}.")
    every = {1: next(iter(overall)), 2: "both metrics"}.get(count, f"all {count} metrics")
    if best[first] == count:
        return Sentence(f"{first} is the best generator{f' — by {every}' if count > 1 else ''}.", "")
    if best:
        return Sentence(
            f"{first} is the best generator by {best[first]} of {count} metrics.", _list_rivals(first, overall)
        )
    if 2 * leading[first] <= count:
        leads = [f"{name} {_choose_leading_verb(name, overall)} on {n}" for name, n in leading.most_common()]
        return Sentence(
            "No clear winner:", f"of {count} metrics, {format_names(leads)}." if leads else NO_LEADER_REASON
        )
    by = every if leading[first] == count else f"{leading[first]} of {count} metrics"
    rest = f"It is not clearly the best. {_list_rivals(first, overall)}"
    return Sentence(f"{first} {_choose_leading_verb(first, overall)} by {by}.", rest.strip())


def _choose_leading_verb(name: str, overall: Boards) -> str:
    """Return `leads` if a generator leads alone, `shares the lead` if jointly, or both phrases if metrics differ."""
    leaders = [list_generator_names(board.list_leaders()) for board in overall.values()]
    alone = {len(first) == 1 for first in leaders if name in first}
    return "leads or shares the lead" if len(alone) > 1 else "leads" if True in alone else "shares the lead"


def _format_counts(counts: Counter[str], n_metrics: int) -> str:
    if n_metrics == 1:
        return format_names(list(counts))
    return f"{format_names([f'{name} by {count}' for name, count in counts.most_common()])}, of {n_metrics} metrics"


def _list_rivals(name: str, overall: Boards) -> str:
    scored = [board for board in overall.values() if name in list_generator_names(board.list_scored_rows())]
    rivals = {
        "No clear difference from it:": Counter(
            other for board in scored for other in board.list_tied_generators(name)
        ),
        "Clearly better:": Counter(other for board in scored for other in board.list_clearly_better(name)),
    }
    parts = [f"{lead} {_format_counts(counts, len(overall))}." for lead, counts in rivals.items() if counts]
    if unscored := len(overall) - len(scored):
        parts.append(f"{format_quantity(unscored, 'metric')} did not score it.")
    return " ".join(parts)


def describe_agreement(overall: Boards) -> list[Sentence]:
    """Return sentences about the pairs of generators that metrics disagree on.

    If there are none, a single sentence says on how many pairs the metrics agree. The list is empty if there are fewer
    than two metrics, or no comparisons of generators.
    """
    duels = _list_duels(overall)
    if len(overall) < 2 or not duels:
        return []
    better: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for duel in duels:
        if duel.better is not None:
            better[tuple(sorted((duel.generator_a, duel.generator_b)))][duel.better].append(duel.metric)
    split = [
        Sentence(
            f"The metrics disagree on {pair[0]} and {pair[1]}:",
            f"{', '.join(f'{name} is clearly better by {format_names(metrics[name])}' for name in pair)}.",
        )
        for pair, metrics in better.items()
        if len(metrics) > 1
    ]
    if split:
        return _limit_pairs(split, "The metrics disagree on")
    n_common = sum(len(metrics) > 1 for winners in better.values() for metrics in winners.values())
    if not n_common:
        return [Sentence("No difference is clear", "by more than one metric.")]
    pairs = format_quantity(n_common, "pair")
    rest = f"on {pairs} of generators: every metric with a clear difference prefers the same generator."
    return [Sentence("The metrics agree", rest)]


def _limit_pairs(sentences: Sequence[Sentence], lead: str) -> list[Sentence]:
    more = len(sentences) - MAX_PAIRS
    rest = [Sentence(lead, f"{format_quantity(more, 'more pair')} of generators.")] if more > 0 else []
    return [*sentences[:MAX_PAIRS], *rest]


def describe_contrary_pairs(overall: Boards) -> list[Sentence]:
    """Return sentences on pairs of generators for which the test clearly favours one, but the means do not."""
    contrary = [
        Sentence(
            f"{duel.better} is clearly better than {duel.worse} by {duel.metric},",
            f"but not by the mean, because the test uses signed ranks. The mean difference of {duel.generator_a} from "
            f"{duel.generator_b} is {format_signed(duel.difference)} on their common prompts.",
        )
        for duel in _list_duels(overall)
        if duel.is_contrary
    ]
    return _limit_pairs(contrary, "Signed ranks and means disagree on")


def describe_certainty(overall: Boards) -> Sentence:
    """Return a sentence with the number of clear comparisons and the test that was used; empty if there are none."""
    duels = _list_duels(overall)
    if not duels:
        return Sentence("", "")
    n_clear = sum(duel.better is not None for duel in duels)
    fewest, most = min(duel.n for duel in duels), max(duel.n for duel in duels)
    prompts = format_quantity(most, "prompt") if fewest == most else f"{fewest:,} to {format_quantity(most, 'prompt')}"
    n_missing = sum(board.n_possible_pairs for board in overall.values()) - len(duels)
    missing = (
        f" {format_quantity(n_missing, 'pair')} could not be compared, as no prompt has both." if n_missing else ""
    )
    rest = (
        f"{n_clear} of {format_quantity(len(duels), 'comparison')} of two generators by one metric "
        f"{'is' if n_clear == 1 else 'are'} clear, by the {describe_tests(duels)} on {prompts} with Holm's correction. "
        "If all generators were equal, at most about one sweep in 20 would show any such difference by a given "
        f"metric.{missing}"
    )
    return Sentence("How sure:", rest)


def describe_seed_noise(by_metric: Mapping[str, RepeatVariances]) -> list[Sentence]:
    """Return a sentence that says how much of the variance of means is due to the seed.

    It also says how much the interval would narrow if there were twice as many images per prompt, or twice as many
    prompts. The list is empty if the seed's share is unknown for every metric.
    """
    shares = {metric: repeats.share for metric, repeats in by_metric.items() if not math.isnan(repeats.share)}
    if not shares:
        return []
    most = max(shares, key=lambda metric: shares[metric])
    least = min(shares, key=lambda metric: shares[metric])
    others = f", and {shares[least]:.0%} by {least}" if len(shares) > 1 else ""
    repeats = by_metric[most]
    narrower = 1 - repeats.width_with_twice_the_images
    rest = (
        f"{shares[most]:.0%} of the variance of a mean by {most}{others}. By {most}, twice as many images per "
        f"prompt (now {repeats.images:.3g}) would narrow the interval by {narrower:.0%}, and "
        f"twice as many prompts by {1 - WIDTH_WITH_TWICE_THE_PROMPTS:.0%}."
    )
    return [Sentence("The seed causes", rest)]
