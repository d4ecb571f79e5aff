"""Conclusions of a run in sentences: who is best, at which skills, how sure that is, and whether metrics disagree.

All sentences about leaders, ties and differences are based on the pairwise tests and on nothing else.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from plumbline.operators.base.sentences import Sentence, names, plural, signed
from plumbline.operators.report.leaders import NO_LEADER, baseline_sentence, metric_sentences, skill_sentences
from plumbline.operators.results.comparison import Board, Duel, generator_names, not_compared
from plumbline.operators.results.summary import OVERALL

MAX_PAIRS = 5
MAX_UNLIKE = 3
"""Pairs of generators with different settings that the headline names."""

Boards = Mapping[str, Board]
"""Boards over all prompts, by metric."""


class Decision(NamedTuple):
    """All sentences of a run, in reading order."""

    headline: Sentence
    by_metric: list[Sentence]
    at_what: list[Sentence]
    agreement: list[Sentence]
    sureness: Sentence

    def sentences(self) -> list[Sentence]:
        every = [self.headline, *self.by_metric, *self.at_what, *self.agreement, self.sureness]
        return [sentence for sentence in every if str(sentence)]


def overall_boards(boards: Mapping[tuple[str, str], Board], metrics: Sequence[str] = ()) -> dict[str, Board]:
    """Return the boards over all prompts by metric, first those of `metrics` in this order."""
    overall = {metric: board for (metric, skill), board in boards.items() if skill == OVERALL}
    return {metric: overall[metric] for metric in dict.fromkeys([*metrics, *overall]) if metric in overall}


def decide(boards: Mapping[tuple[str, str], Board], overall: Boards, failed: str = "") -> Decision:
    """Return all conclusions of a run; `failed` describes the failed rows, if there are any."""
    baseline = next((board.baseline for board in overall.values()), "")
    each = list(overall.values())
    first = headline(overall, failed)
    if unlike := not_compared(duel for board in each for duel in board.unlike):
        note = f"Not compared, as their settings differ: {names(unlike, MAX_UNLIKE)}."
        first = first._replace(rest=f"{first.rest} {note}".strip())
    return Decision(
        headline=first,
        by_metric=[baseline_sentence(board) for board in each] if baseline else metric_sentences(each),
        at_what=skill_sentences(boards, list(mean_ranks(overall)), baseline or reference(overall)),
        agreement=[*agreement_sentences(overall), *contrary_sentences(overall)],
        sureness=sureness_sentence(overall),
    )


def _duels(overall: Boards) -> list[Duel]:
    return [duel for board in overall.values() for duel in board.duels]


def mean_ranks(overall: Boards) -> dict[str, float | None]:
    """Return each generator's mean rank over the metrics, best first.

    The mean is None, and the generator comes last, if a metric that scored other generators did not score it.
    """
    ranks: dict[str, list[int]] = {name: [] for board in overall.values() for name in generator_names(board.rows)}
    for board in overall.values():
        for row in board.scored():
            ranks[row.generator].append(row.rank or 0)
    scoring = sum(bool(board.scored()) for board in overall.values())
    means = {name: mean(of_metrics) if 0 < len(of_metrics) == scoring else None for name, of_metrics in ranks.items()}
    return dict(sorted(means.items(), key=lambda rank: (math.inf if rank[1] is None else rank[1], rank[0])))


def _best_and_leading(overall: Boards) -> tuple[Counter[str], Counter[str]]:
    """Count the metrics by which each generator is the best, and those by which it leads or shares the lead."""
    best = Counter(first.generator for board in overall.values() if (first := board.best()))
    return best, Counter(name for board in overall.values() for name in generator_names(board.leaders()))


def reference(overall: Boards) -> str:
    """Return the generator that the headline is about.

    It is best by the most metrics. Ties are decided by the number of metrics by which it leads, then by the mean rank.
    """
    best, leading = _best_and_leading(overall)
    return max(mean_ranks(overall), key=lambda name: (best[name], leading[name]), default="")


def headline(overall: Boards, failed: str = "") -> Sentence:
    """Return the decision in one line; `failed` describes the failed rows, if there are any."""
    scored = list(dict.fromkeys(name for board in overall.values() for name in generator_names(board.scored())))
    if not scored:
        return Sentence("Nothing could be scored.", f"Failed rows: {failed}" if failed else "")
    if len(scored) == 1:
        return Sentence("One generator was scored:", f"{scored[0]}. There is nothing to rank it against.")
    duels = _duels(overall)
    if not duels:
        if any(board.unlike for board in overall.values()):
            return Sentence("No two generators are compared.", "")
        return Sentence("No two generators can be compared:", "no metric scored two of them on the same prompt.")
    if baseline := next(iter(overall.values())).baseline:
        return _baseline_headline(overall, baseline)
    if not any(board.differs for board in overall.values()):
        by = next(iter(overall)) if len(overall) == 1 else f"any of {len(overall)} metrics"
        able = any(board.can_tell for board in overall.values())
        lead = "No generator is clearly better than another" if able else "Too few prompts to tell who is better"
        return Sentence(lead, f"by {by}.")
    return _winner_headline(overall)


def _baseline_headline(overall: Boards, baseline: str) -> Sentence:
    """Return the headline of a run in which all generators are only compared with the baseline."""
    each, count = overall.values(), len(overall)
    better = Counter(name for board in each for name in board.better_than(baseline))
    worse = Counter(name for board in each for name in board.worse_than(baseline))
    if better:
        behind = f" Clearly worse: {_counts_text(worse, count)}." if worse else ""
        return Sentence(f"Clearly better than {baseline}:", f"{_counts_text(better, count)}.{behind}")
    by = f"by any of {count} metrics" if count > 1 else f"by {next(iter(overall))}"
    if worse:
        return Sentence(
            f"No generator is clearly better than {baseline}", f"{by}. Worse: {_counts_text(worse, count)}."
        )
    if any(board.can_tell for board in each):
        return Sentence(f"No generator is clearly better or worse than {baseline}", f"{by}.")
    return Sentence(f"Too few prompts to tell who is better or worse than {baseline}", f"{by}.")


def _winner_headline(overall: Boards) -> Sentence:
    """Return the headline of a run in which two generators differ clearly by some metric."""
    first, count = reference(overall), len(overall)
    best, leading = _best_and_leading(overall)
    if len(best) > 1:
        return Sentence("The metrics disagree on the best generator:", f"{_counts_text(best, count)}.")
    if best[first] == count:
        by = f" — by {_metrics(list(overall))}" if count > 1 else ""
        return Sentence(f"{first} is the best generator{by}.", "")
    if best:
        return Sentence(f"{first} is the best generator by {best[first]} of {count} metrics.", _rivals(first, overall))
    if 2 * leading[first] <= count:
        leads = [f"{name} {_leading_verb(name, overall)} on {n}" for name, n in leading.most_common()]
        return Sentence("No clear winner:", f"of {count} metrics, {names(leads)}." if leads else NO_LEADER)
    by = _metrics(list(overall)) if leading[first] == count else f"{leading[first]} of {count} metrics"
    return Sentence(
        f"{first} {_leading_verb(first, overall)} by {by}, but is not clearly the best.", _rivals(first, overall)
    )


def _leading_verb(name: str, overall: Boards) -> str:
    """Return `leads` if a generator leads alone, `shares the lead`, or both if that depends on the metric."""
    leaders = [generator_names(board.leaders()) for board in overall.values()]
    alone = {len(first) == 1 for first in leaders if name in first}
    return "leads or shares the lead" if len(alone) > 1 else "leads" if True in alone else "shares the lead"


def _metrics(metrics: Sequence[str]) -> str:
    """Return the name of a single metric, `both metrics` or `all 3 metrics`."""
    return {1: metrics[0], 2: "both metrics"}.get(len(metrics), f"all {len(metrics)} metrics")


def _counts_text(counts: Counter[str], n_metrics: int) -> str:
    """Return `a by 2 and b by 1, of 3 metrics`, the highest count first; with one metric only the names."""
    if n_metrics == 1:
        return names(list(counts))
    return f"{names([f'{name} by {count}' for name, count in counts.most_common()])}, of {n_metrics} metrics"


def _rivals(name: str, overall: Boards) -> str:
    """Return the generators that do not differ clearly from a generator, and the better ones, by how many metrics."""
    scored = [board for board in overall.values() if name in generator_names(board.scored())]
    rivals = {
        "Cannot be told from it": Counter(other for board in scored for other in board.tied_with(name)),
        "Clearly better": Counter(other for board in scored for other in board.better_than(name)),
    }
    parts = [f"{said}: {_counts_text(counts, len(overall))}." for said, counts in rivals.items() if counts]
    if unscored := len(overall) - len(scored):
        parts.append(f"{plural(unscored, 'metric')} did not score it.")
    return " ".join(parts)


def agreement_sentences(overall: Boards) -> list[Sentence]:
    """Return whether metrics agree on the pairs of generators for which several metrics see a clear difference."""
    duels = _duels(overall)
    if len(overall) < 2 or not duels:
        return []
    better: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for duel in duels:
        if duel.better is not None:
            better[tuple(sorted((duel.generator_a, duel.generator_b)))][duel.better].append(duel.metric)
    split = [
        Sentence(
            f"The metrics disagree on {pair[0]} and {pair[1]}:",
            f"{', '.join(f'{name} is clearly better by {names(metrics[name])}' for name in pair)}.",
        )
        for pair, metrics in better.items()
        if len(metrics) > 1
    ]
    if split:
        return _first_pairs(split, "The metrics disagree on")
    common = sum(len(metrics) > 1 for winners in better.values() for metrics in winners.values())
    if not common:
        return [Sentence("The metrics have no clear difference in common", "on which they could agree or disagree.")]
    rest = f"on {plural(common, 'pair')} of generators: all that see a clear difference see the same one."
    return [Sentence("The metrics agree", rest)]


def _first_pairs(sentences: Sequence[Sentence], lead: str) -> list[Sentence]:
    """Return the first sentences, each about a pair, and a sentence with the number of the others."""
    more = len(sentences) - MAX_PAIRS
    rest = [Sentence(lead, f"{plural(more, 'more pair')} of generators.")] if more > 0 else []
    return [*sentences[:MAX_PAIRS], *rest]


def contrary_sentences(overall: Boards) -> list[Sentence]:
    """Return the pairs that differ clearly although their means do not differ in the same direction."""
    contrary = [
        Sentence(
            f"{duel.better} is clearly better than {duel.worse} by {duel.metric},",
            f"though the mean of {duel.generator_a} less that of {duel.generator_b} is {signed(duel.difference)} on "
            "their common prompts: the test is of signed ranks.",
        )
        for duel in _duels(overall)
        if duel.is_contrary
    ]
    return _first_pairs(contrary, "Signed ranks and means point apart on")


def sureness_sentence(overall: Boards) -> Sentence:
    """Return how many comparisons are clear, and by which test; empty if nothing was compared."""
    duels = _duels(overall)
    if not duels:
        return Sentence("", "")
    clear = sum(duel.better is not None for duel in duels)
    fewest, most = min(duel.n for duel in duels), max(duel.n for duel in duels)
    prompts = plural(most, "prompt") if fewest == most else f"{fewest:,} to {plural(most, 'prompt')}"
    lacking = sum(board.pairs_wanted for board in overall.values()) - len(duels)
    apart = f" {plural(lacking, 'pair')} could not be compared, as no prompt has both." if lacking else ""
    are = "is" if clear == 1 else "are"
    rest = (
        f"{clear} of {plural(len(duels), 'comparison')} of two generators by one metric {are} clear, by Wilcoxon's "
        f"signed-rank test on {prompts} with Holm's correction: were all generators equal, about one sweep in 20 at "
        f"most would show any such difference by a given metric.{apart}"
    )
    return Sentence("How sure:", rest)
