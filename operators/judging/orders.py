"""Whether a metric finds the generators that people find better (Gecko, sections 4.2 and 6.4)."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, combinations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from operators.judging.judgement import PEOPLE, Judgement, Order, numbers
from operators.judging.matching import chosen_ids, complete_ids, of_images, rated_ids, scored_ids
from operators.judging.preferences import PREFERENCE_SIGNS, majority_votes
from operators.judging.ratings import mean_ratings
from operators.statistics.bootstrap import UNDEFINED
from operators.statistics.options import Match, ZeroHandling
from operators.statistics.ordering import SignedRank, holm, signed_rank

SIDE_BY_SIDE = "side_by_side"
UNDECIDED = "undecided: the signed ranks favour the generator of the lower mean"
STATISTICS = ("model_ordering", "orders_reversed", "orders_missed")


def judge_orders(
    ratings: pa.Table, preferences: pa.Table, scores: pa.Table, *, match: Match, alpha: float, zeros: ZeroHandling
) -> tuple[list[Order], list[Judgement]]:
    """Who is better by people and by each metric, and how far these agree: on the images that both judged.

    Where metrics scored different images, people have an order beside each of them.
    """
    judged = pd.concat([rated_ids(ratings), chosen_ids(preferences)], ignore_index=True)
    own, people = dict[str, list[Order]](), dict[str, list[Order]]()
    for metric in scores.column("metric").unique().to_pylist():
        metric_scores = scores.filter(pc.equal(scores.column("metric"), metric))
        scored, both = scored_ids(metric_scores), of_images(metric_scores, judged, match)
        own[metric] = order_by_scores(complete_ids(both, judged), alpha=alpha, zeros=zeros)
        by_ratings = order_by_ratings(of_images(ratings, scored, match), match, alpha=alpha, zeros=zeros)
        pairs = of_images(of_images(preferences, scored, match, "a"), scored, match, "b")
        by_choices = order_by_preferences(pairs, alpha=alpha, zeros=zeros) if len(pairs) else []
        people[metric] = by_ratings + by_choices
    agreements = [share for metric in own for share in agree_on_order([*people[metric], *own[metric]])]
    return [*_named_apart(people), *chain.from_iterable(own.values())], agreements


def _named_apart(people: Mapping[str, list[Order]]) -> list[Order]:
    """People's orders once where they are the same beside every metric, and otherwise with the metric's name."""
    first, *others = people.values() or [[]]
    if all(repr(orders) == repr(first) for orders in others):  # nan is not equal to itself
        return first
    return [
        order._replace(judge=f"{PEOPLE}, where {metric} scored")
        for metric, orders in people.items()
        for order in orders
    ]


def order_by_ratings(ratings: pa.Table, match: Match, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Every two generators by the ratings of each template, paired by prompt."""
    human = mean_ratings(ratings, match)
    return [
        order
        for template, rows in human.groupby("template", sort=False, dropna=False)
        for order in _orders(PEOPLE, rows.rename(columns={"human": "score"}), alpha, zeros, str(template))
    ]


def order_by_scores(scores: pa.Table, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Every two generators by each metric, paired by prompt; several images of a prompt are averaged."""
    frame = scores.select(["metric", "generator", "prompt_id", "score"]).to_pandas()
    frame = frame.assign(score=numbers(frame["score"]))
    return [
        order
        for metric, rows in frame.groupby("metric", sort=False)
        for order in _orders(str(metric), rows, alpha, zeros, "")
    ]


def _orders(judge: str, rows: pd.DataFrame, alpha: float, zeros: ZeroHandling, template: str) -> list[Order]:
    wide = rows.groupby(["prompt_id", "generator"])["score"].mean().unstack("generator")
    pairs = {(a, b): signed_rank(wide[a].to_numpy(), wide[b].to_numpy(), zeros=zeros) for a, b in combinations(wide, 2)}
    tests = {pair: test for pair, test in pairs.items() if test.n}
    corrected = holm([test.p_value for test in tests.values()])
    words = f"Wilcoxon signed-rank on prompts, zeros {zeros}, p < {alpha:g} without correction, better mean wins"
    return [
        Order(
            judge,
            str(a),
            str(b),
            _better(str(a), str(b), test, alpha),
            test.difference,
            test.p_value,
            p_holm,
            test.n,
            f"{words}; {UNDECIDED}" if test.p_value < alpha and _is_contrary(test) else words,
            template,
        )
        for ((a, b), test), p_holm in zip(tests.items(), corrected, strict=True)
    ]


def _better(a: str, b: str, test: SignedRank, alpha: float) -> str | None:
    """The generator of the better mean, where the test is significant and its ranks favour the same one."""
    if not test.p_value < alpha or _is_contrary(test):
        return None
    return a if test.difference > 0 else b


def _is_contrary(test: SignedRank) -> bool:
    """Whether the mean and the signed ranks do not favour the same generator."""
    return test.difference * test.effect <= 0


def order_by_preferences(preferences: pa.Table, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Every two generators that were shown side by side.

    The better one must also be preferred more often than the other and than neither (Gecko, section 4.3).
    """
    votes = majority_votes(preferences)
    swapped = votes["generator_a"] > votes["generator_b"]
    sign = votes["preferred"].map(PREFERENCE_SIGNS).where(~swapped, -votes["preferred"].map(PREFERENCE_SIGNS))
    pair = votes[["generator_a", "generator_b"]].min(axis=1), votes[["generator_a", "generator_b"]].max(axis=1)
    frame = pd.DataFrame({"a": pair[0], "b": pair[1], "prompt_id": votes["prompt_id"], "sign": sign.astype("float64")})
    found = [_preferred(str(a), str(b), rows["sign"], alpha, zeros) for (a, b), rows in frame.groupby(["a", "b"])]
    corrected = holm([order.p_value for order in found])
    return [order._replace(p_holm=p) for order, p in zip(found, corrected, strict=True)]


def _preferred(a: str, b: str, sign: "pd.Series[float]", alpha: float, zeros: ZeroHandling) -> Order:
    test = signed_rank(sign.to_numpy(), 0 * sign.to_numpy(), zeros=zeros)
    counts = {name: int((sign == value).sum()) for name, value in ((a, 1), (b, -1), ("", 0))}
    most = max(counts, key=lambda name: counts[name])
    first = [name for name, count in counts.items() if count == counts[most]] == [most] and most != ""
    better = most if first and test.p_value < alpha else None
    words = f"majority votes, Wilcoxon signed-rank, zeros {zeros}, p < {alpha:g}, preferred more often than unsure"
    return Order(PEOPLE, a, b, better, test.difference, test.p_value, math.nan, test.n, words, SIDE_BY_SIDE)


def agree_on_order(orders: Sequence[Order]) -> list[Judgement]:
    """By metric and template, the shares of generator pairs on which its significant order is people's
    (model_ordering), is the opposite (orders_reversed), or is lacking where people have one (orders_missed).
    """
    people = [order for order in orders if order.judge == PEOPLE]
    said = {(order.judge, _pair(order)): order.better for order in orders if order.judge != PEOPLE}
    found = []
    for metric in dict.fromkeys(judge for judge, _ in said):
        for template in dict.fromkeys(order.template for order in people):
            mine = [order for order in people if order.template == template and (metric, _pair(order)) in said]
            found += _agreement(metric, template, [(order.better, said[metric, _pair(order)]) for order in mine])
    return found


def _pair(order: Order) -> frozenset[str]:
    return frozenset((order.generator_a, order.generator_b))


def _agreement(metric: str, template: str, pairs: Sequence[tuple[str | None, str | None]]) -> list[Judgement]:
    same = [human == its for human, its in pairs]
    reversed_ = [human is not None and its is not None and human != its for human, its in pairs]
    missed = [human is not None and its is None for human, its in pairs]
    words = "share of generator pairs, of those that the metric and people ordered by significance"
    return [
        Judgement(metric, name, sum(share) / len(share), UNDEFINED, len(share), words, template=template)
        for name, share in zip(STATISTICS, (same, reversed_, missed), strict=True)
        if share
    ]
