"""The better of two generators by each template of ratings, and by most templates (Gecko, figures 2 and 13)."""

import math
from collections import Counter
from collections.abc import Sequence

from plumbline.operators.base.sentences import NOTHING, ShownTable
from plumbline.operators.metaeval.judgement import PEOPLE, Order

MAJORITY = "majority"
"""The template of the orders that most templates find."""
CAPTION = (
    ">: the first generator is better; <: the second is; =: neither is, by significance. Templates have the same "
    "relation, or no conflict (some tell the generators apart, and those that do agree), or a conflict."
)


def majority_orders(orders: Sequence[Order]) -> list[Order]:
    """Return the relation of every two generators that most of two or more templates find (Gecko, section 6.4).

    The pair is left out if two relations are found equally often. A relation may be that neither is better.
    """
    found = []
    for (a, b), group in _group_pairs(orders).items():
        (better, count), *others = Counter(order.better for order in group).most_common()
        if len(group) > 1 and (not others or others[0][1] < count):
            words = f"found by {count} of {len(group)} templates, more than any other relation; n: fewest prompts"
            n = min(order.n for order in group)
            found.append(Order(PEOPLE, a, b, better, math.nan, math.nan, n, words, MAJORITY))
    return found


def relations_tables(orders: Sequence[Order]) -> list[ShownTable]:
    """Return tables of people's relations of generators by template, with the majority's and the conflicts.

    The list is empty if people judged by a single template. If metrics scored different images, each has a table.
    """
    tables = []
    for judge in dict.fromkeys(order.judge for order in orders if order.judge.startswith(PEOPLE)):
        own = [order for order in orders if order.judge == judge]
        templates = sorted({order.template for order in own} - {MAJORITY})
        if len(templates) > 1:
            names = ("generators", *templates, MAJORITY, "templates have")
            lines = [(f"{a}, {b}", *_cells(group, templates)) for (a, b), group in _group_pairs(own).items()]
            tables.append(ShownTable(f"relations of generators by {judge}", CAPTION, names, lines))
    return tables


def _group_pairs(orders: Sequence[Order]) -> dict[tuple[str, str], list[Order]]:
    pairs: dict[tuple[str, str], list[Order]] = {}
    for order in orders:
        pairs.setdefault((order.generator_a, order.generator_b), []).append(order)
    return pairs


def _cells(orders: Sequence[Order], templates: Sequence[str]) -> list[str]:
    signs = {order.template: _sign(order) for order in orders}
    found = {signs[template] for template in templates if template in signs}
    verdict = "a conflict" if {"<", ">"} <= found else "no conflict" if len(found) > 1 else "the same relation"
    return [*(signs.get(template, NOTHING) for template in (*templates, MAJORITY)), verdict]


def _sign(order: Order) -> str:
    return "=" if order.better is None else ">" if order.better == order.generator_a else "<"
