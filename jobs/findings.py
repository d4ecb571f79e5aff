"""What a meta-evaluation looks like on the terminal."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.console import show_tables
from operators.judging.judgement import OVERALL, PEOPLE, Comparison, Judgement, Order
from operators.judging.publish import EMPTY, conventions, count_columns, value_text
from pipelines.judging.metaeval import Findings

SIGNIFICANT = 0.05


def show_agreement(console: Console, found: Findings) -> None:
    """What to look at first, and each metric's statistics overall."""
    for warning in found.warnings:
        console.print(f"[yellow]warning[/] {escape(warning)}", soft_wrap=True)
    metrics = [its for its in found.judgements if its.metric != PEOPLE and its.subset == OVERALL]
    for template in dict.fromkeys(its.template for its in metrics):
        _show_statistics(console, _title(found, template), [its for its in metrics if its.template == template])


def show_findings(console: Console, found: Findings) -> None:
    """Each metric's statistics overall, the first of them by skill, which metrics differ, and every convention."""
    show_agreement(console, found)
    metrics = [its for its in found.judgements if its.metric != PEOPLE]
    for template in dict.fromkeys(its.template for its in metrics):
        mine = [its for its in metrics if its.template == template and its.subset != OVERALL]
        _show_subsets(console, _title(found, template), mine)
    _show_people(console, [its for its in found.judgements if its.metric == PEOPLE])
    _show_comparisons(console, found.comparisons)
    _show_orders(console, found.orders)
    for line in (*conventions(found.judgements), *found.notes):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _title(found: Findings, template: str) -> str:
    return f"{found.protocol}: agreement with {template or 'what is known'}"


def _show_statistics(console: Console, title: str, judgements: list[Judgement]) -> None:
    """Values with their intervals below, by metric and statistic."""
    found = {(its.metric, its.statistic): its for its in judgements if not its.statistic.startswith("epsilon")}
    rows = _rows({place: value_text(its).replace(" ", "\n", 1) for place, its in found.items()})
    for column, counts in count_columns(_rows({place: str(its.n) for place, its in found.items()})).items():
        for name, row in rows.items():
            row[column] = counts.get(name, EMPTY)
    show_tables(console, title, rows)


def _show_subsets(console: Console, title: str, judgements: list[Judgement]) -> None:
    """The statistic that comes first, by subset (with its n) and metric."""
    if not judgements:
        return
    statistic = judgements[0].statistic
    mine = [its for its in judgements if its.statistic == statistic]
    n = {subset: max(its.n for its in mine if its.subset == subset) for subset in {its.subset for its in mine}}
    cells = {(f"{its.subset} ({n[its.subset]})", its.metric): _number(its.value) for its in mine}
    show_tables(console, f"{title}: {statistic} by skill (n)", _rows(cells))


def _rows(cells: Mapping[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    """Cells by two names, as rows and columns: the kind that has fewer names goes across."""
    first, second = (dict.fromkeys(place[kind] for place in cells) for kind in (0, 1))
    if len(second) <= len(first):
        return {down: {across: cells.get((down, across), EMPTY) for across in second} for down in first}
    return {down: {across: cells.get((across, down), EMPTY) for across in first} for down in second}


def _show_people(console: Console, judgements: list[Judgement]) -> None:
    if not judgements:
        return
    table = Table("", "template", "statistic", "value", "n", title="the raters")
    for its in judgements:
        table.add_row(escape(its.subset), escape(its.template), its.statistic, value_text(its), str(its.n))
    console.print(table)


def _show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """A matrix per template and statistic: by how much the row's metric is above the column's, where that is
    significant.
    """
    for template, statistic in dict.fromkeys((its.template, its.statistic) for its in comparisons):
        mine = [its for its in comparisons if (its.template, its.statistic) == (template, statistic)]
        metrics = list(dict.fromkeys(name for its in mine for name in (its.metric_a, its.metric_b)))
        above = {(its.metric_a, its.metric_b): its for its in mine}
        above |= {(its.metric_b, its.metric_a): its._replace(difference=-its.difference) for its in mine}
        names = " ".join(filter(None, (template, statistic)))
        table = Table("", *map(str, range(1, len(metrics) + 1)), title=escape(f"{names}: which metrics differ"))
        table.caption = f"row less column; * p < {SIGNIFICANT} after Holm; {mine[0].test}"
        for number, metric in enumerate(metrics, 1):
            table.add_row(f"{number} {escape(metric)}", *(_difference(above.get((metric, other))) for other in metrics))
        console.print(table)


def _difference(compared: Comparison | None) -> str:
    if compared is None or math.isnan(compared.difference):
        return ""
    return f"{compared.difference:+.2f}{'*' if compared.p_holm < SIGNIFICANT else ' '}"


def _show_orders(console: Console, orders: Sequence[Order]) -> None:
    """Who is better by each judge: generator pairs down, judges across."""
    if not orders:
        return
    judges = list(dict.fromkeys((its.judge, its.template) for its in orders))
    table = Table("generators", *(escape(" ".join(filter(None, judge))) for judge in judges), title="which is better")
    for pair in dict.fromkeys((its.generator_a, its.generator_b) for its in orders):
        said = {(its.judge, its.template): its for its in orders if (its.generator_a, its.generator_b) == pair}
        table.add_row(escape(f"{pair[0]}, {pair[1]}"), *(_better(said.get(judge)) for judge in judges))
    table.caption = "\n".join(dict.fromkeys(escape(its.convention) for its in orders))
    console.print(table)


def _better(order: Order | None) -> str:
    if order is None:
        return ""
    return escape(order.better) if order.better else EMPTY


def _number(value: float) -> str:
    return EMPTY if math.isnan(value) else f"{value:.3f}"
