"""Orders generators by people's judgements and by metrics, and compares the orders (Gecko, sections 4.2 and 6.4)."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations, starmap
from statistics import fmean

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.sentences import NO_VALUE_MARK, ShownTable, format_quantity
from plumbline.operators.metaeval.judgement import (
    PEOPLE,
    Judgement,
    Order,
    compute_group_means,
    convert_to_floats,
    correct_p_values,
    make_undefined_judgement,
)
from plumbline.operators.metaeval.matching import (
    complete_ids,
    list_paired_ids,
    list_rated_ids,
    list_scored_ids,
    select_images,
)
from plumbline.operators.metaeval.preferences import PREFERENCE_SIGNS, find_majority_votes, sort_sides
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL
from plumbline.operators.statistics.options import Match, ZeroHandling
from plumbline.operators.statistics.ordering import signed_rank

KEY_COLUMNS = ("prompt_id", "generator")
ORDERING_STATISTIC = "model_ordering"
UNDECIDED_NOTE = "undecided: the signed ranks favour the generator with the lower mean"
MAJORITY_TEMPLATE = "majority"  # stands for a template in orders that most templates find
RELATIONS_CAPTION = (
    ">: the first generator is better; <: the second is; =: neither is, by significance. Templates have the same "
    "relation, or no conflict (some tell the generators apart, and those that do agree), or a conflict."
)


def judge_orders(
    ratings: pa.Table, preferences: pa.Table, scores: pa.Table, *, match: Match, alpha: float, zeros: ZeroHandling
) -> tuple[list[Order], list[Judgement]]:
    """Return how people and metrics order each pair of generators, and how well their orders agree.

    Only images that were rated and scored count. If metrics scored different images, people's order is determined
    separately for each metric. Without scores, all rated images count.
    """

    def order_by_people(ratings: pa.Table, preferences: pa.Table) -> list[Order]:
        orders = order_by_ratings(ratings, match, alpha=alpha, zeros=zeros)
        if len(preferences):
            orders += order_by_preferences(preferences, alpha=alpha, zeros=zeros)
        return orders + find_majority_orders(orders)

    if not len(scores):
        return order_by_people(ratings, preferences), []
    judged = pd.concat([list_rated_ids(ratings), list_paired_ids(preferences)], ignore_index=True)
    own, people, agreements = dict[str, list[Order]](), dict[str, list[Order]](), list[Judgement]()
    for metric in scores.column("metric").unique().to_pylist():
        metric_scores = scores.filter(pc.equal(scores.column("metric"), metric))
        scored, both = list_scored_ids(metric_scores), select_images(metric_scores, judged, match)
        own[metric] = order_by_scores(metric, complete_ids(both, judged), alpha=alpha, zeros=zeros)
        pairs = select_images(select_images(preferences, scored, match, "a"), scored, match, "b")
        people[metric] = order_by_people(select_images(ratings, scored, match), pairs)
        agreements += measure_order_agreement(metric, people[metric], own[metric])
    merged, *others = people.values()
    if any(repr(orders) != repr(merged) for orders in others):  # repr, because nan is not equal to itself
        merged = [
            order._replace(judge=f"{PEOPLE}, where {metric} scored")
            for metric, orders in people.items()
            for order in orders
        ]
    return [*merged, *chain.from_iterable(own.values())], agreements


def order_by_ratings(ratings: pa.Table, match: Match, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Return how the ratings for each template order every pair of generators that share rated prompts."""
    human = average_ratings(ratings, match).rename(columns={"human": "score"})
    return [
        order._replace(template=str(template))
        for template, rows in human.groupby("template", sort=False, dropna=False)
        for order in _order_by_means(PEOPLE, rows, alpha, zeros)
    ]


def order_by_scores(metric: str, scores: pa.Table, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Return the order of every pair of generators by a metric's scores, averaged and paired by prompt."""
    frame = scores.select(["generator", "prompt_id", "score"]).to_pandas()
    return _order_by_means(metric, frame.assign(score=convert_to_floats(frame["score"])), alpha, zeros)


def _order_by_means(judge: str, rows: pd.DataFrame, alpha: float, zeros: ZeroHandling) -> list[Order]:
    wide = compute_group_means(rows.dropna(subset=list(KEY_COLUMNS)), KEY_COLUMNS, "score").unstack("generator")
    words = f"Wilcoxon signed-rank on prompts, zeros {zeros}, p < {alpha:g} without correction, better mean wins"
    orders = []
    for a, b in combinations(map(str, wide), 2):
        test = signed_rank(wide[a].to_numpy(), wide[b].to_numpy(), zeros=zeros)
        if not test.n:
            continue
        significant, contrary = test.p_value < alpha, test.difference * test.effect <= 0
        better = (a if test.difference > 0 else b) if significant and not contrary else None
        convention = f"{words}; {UNDECIDED_NOTE}" if significant and contrary else words
        orders.append(Order(judge, a, b, better, test.difference, test.p_value, test.n, convention))
    return correct_p_values(orders)


def order_by_preferences(preferences: pa.Table, *, alpha: float, zeros: ZeroHandling) -> list[Order]:
    """Return the order of every pair of generators whose images were compared side by side, by template.

    The better generator must also have more wins than losses, and more wins than unsure votes (Gecko, section 4.3).
    """
    votes = sort_sides(find_majority_votes(preferences))
    votes["sign"] = votes["preferred"].map(PREFERENCE_SIGNS).astype("float64")
    words = f"majority votes, Wilcoxon signed-rank, zeros {zeros}, p < {alpha:g}, preferred more often than unsure"
    orders = []
    for template, template_votes in votes.groupby("template", sort=False):
        of_template = []
        for (a, b), rows in template_votes.groupby(["generator_a", "generator_b"]):
            sign = rows["sign"].to_numpy()
            test = signed_rank(sign, 0 * sign, zeros=zeros)
            counts = {name: int((sign == value).sum()) for name, value in ((str(a), 1), (str(b), -1), (None, 0))}
            most = [name for name, count in counts.items() if count == max(counts.values())]
            better = most[0] if len(most) == 1 and test.p_value < alpha else None
            tested = (better, test.difference, test.p_value, test.n)
            of_template.append(Order(PEOPLE, str(a), str(b), *tested, words, template=str(template)))
        orders += correct_p_values(of_template)
    return orders


def measure_order_agreement(metric: str, people: Sequence[Order], own: Sequence[Order]) -> list[Judgement]:
    """For each template, return three statistics of how well a metric's order of generators matches people's.

    Each is a fraction of the pairs that are in both `people` and `own`. In `model_ordering`, the metric and people
    favour the same generator, or both favour neither. In `orders_reversed`, they favour different generators. In
    `orders_missed`, only people favour one. A generator is favoured if the order is significant.

    The fractions are undefined if people favour no generator of any pair: then any metric without a significant order
    would agree perfectly.
    """
    words = "share of generator pairs, of those that the metric and people ordered by significance"
    better = {(order.generator_a, order.generator_b): order.better for order in own}
    compared: dict[str, list[tuple[str | None, str | None]]] = {}
    for order in people:
        if (pair := (order.generator_a, order.generator_b)) in better:
            compared.setdefault(order.template, []).append((order.better, better[pair]))
    shares = {
        ORDERING_STATISTIC: lambda human, ours: human == ours,
        "orders_reversed": lambda human, ours: None not in (human, ours) and human != ours,
        "orders_missed": lambda human, ours: human is not None and ours is None,
    }
    judgements = []
    for template, pairs in compared.items():
        reason = f"people tell no two generators apart by significance, of {format_quantity(len(pairs), 'pair')}"
        for name, holds in shares.items():
            if any(human is not None for human, _ in pairs):
                judged = Judgement(metric, name, fmean(starmap(holds, pairs)), UNDEFINED_INTERVAL, len(pairs), words)
            else:
                judged = make_undefined_judgement(metric, name, len(pairs), reason)
            judgements.append(judged._replace(template=template))
    return judgements


def find_majority_orders(orders: Sequence[Order]) -> list[Order]:
    """Return, for each pair of generators, the most common relation among the templates (Gecko, section 6.4).

    A relation says which generator is better, or that neither is. A pair is left out if it is in only one template, or
    if the two most common relations are equally common.
    """
    found = []
    for (a, b), group in _group_pairs(orders).items():
        (better, count), *others = Counter(order.better for order in group).most_common()
        if len(group) > 1 and (not others or others[0][1] < count):
            words = f"found by {count} of {len(group)} templates, more than any other relation; n: fewest prompts"
            n = min(order.n for order in group)
            found.append(Order(PEOPLE, a, b, better, math.nan, math.nan, n, words, MAJORITY_TEMPLATE))
    return found


def make_relations_tables(orders: Sequence[Order]) -> list[ShownTable]:
    """Return tables of people's order of each pair of generators by template, with the majority and any conflicts.

    The list is empty if people judged under only one template. If metrics scored different images, each metric has a
    table of its own (Gecko, figures 2 and 13).
    """
    tables = []
    for judge in dict.fromkeys(order.judge for order in orders if order.judge.startswith(PEOPLE)):
        own = [order for order in orders if order.judge == judge]
        templates = sorted({order.template for order in own} - {MAJORITY_TEMPLATE})
        if len(templates) < 2:
            continue
        lines = []
        for (a, b), group in _group_pairs(own).items():
            signs = {each.template: {None: "=", a: ">"}.get(each.better, "<") for each in group}
            found = {sign for template, sign in signs.items() if template != MAJORITY_TEMPLATE}
            verdict = "a conflict" if {"<", ">"} <= found else "no conflict" if len(found) > 1 else "the same relation"
            cells = [signs.get(template, NO_VALUE_MARK) for template in (*templates, MAJORITY_TEMPLATE)]
            lines.append((f"{a}, {b}", *cells, verdict))
        names = ("generators", *templates, MAJORITY_TEMPLATE, "templates have")
        tables.append(ShownTable(f"relations of generators by {judge}", RELATIONS_CAPTION, names, lines))
    return tables


def _group_pairs(orders: Sequence[Order]) -> dict[tuple[str, str], list[Order]]:
    pairs: dict[tuple[str, str], list[Order]] = {}
    for order in orders:
        pairs.setdefault((order.generator_a, order.generator_b), []).append(order)
    return pairs
