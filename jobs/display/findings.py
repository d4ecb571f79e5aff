"""Prints the results of a meta-evaluation on the terminal."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plumbline.jobs.display.console import say, show_sentence, show_table, show_tables, warn
from plumbline.operators.base.sentences import ShownTable, format_names
from plumbline.operators.metaeval.corrected_tables import describe_contradictions, make_mean_tables
from plumbline.operators.metaeval.judgement import OVERALL, PEOPLE, Comparison, Judgement, Order
from plumbline.operators.metaeval.orders import make_relations_tables
from plumbline.operators.metaeval.paper_tables import EMPTY_CELL, format_value, list_conventions, make_count_columns
from plumbline.operators.report.agreement import Agreement, describe_conclusions
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.pipelines.metaeval.metaeval import NO_SCORES_NOTE, PAGE_FILE, Findings

MAX_TABLE_LINES = 40
"""Maximum number of lines in the main table, so that it fits on a screen."""
MAX_PRINTED_ROWS = 24
FILE_DESCRIPTIONS = {
    PAGE_FILE: "every statistic, by skill too, with its convention; the raters; corrected means",
    "judgements.parquet": "the same statistics as a table",
    "comparisons.parquet": "which metrics differ",
    "orders.parquet": "which of two generators is better, by people and by each metric",
    "corrected.parquet": "generators by people and each metric together",
    "contradicted.parquet": "images on which a metric contradicts people most",
    "people_choices.parquet": "people's choices between two images, as comparisons.parquet of a run has a judge's",
    "correlations.parquet": "how far metrics agree with each other",
    "graph_contents.parquet": "where images and prompts of error graphs come from, and types of errors",
    "graphs.parquet": "each metric's results for each error graph",
    "graph_images.parquet": "the scores of the images of each error graph",
    "graph_means.parquet": "mean scores by node of each error graph",
    "graph_correlations.parquet": "how far metrics find the same error graphs hard",
    "words.parquet": "each metric's result for each rated word",
    "mean_ratings.parquet": "people's mean rating of each image",
}
"""Description of each file that a meta-evaluation writes."""


def show_agreement(console: Console, findings: Findings) -> None:
    """Print the warnings, and the metrics' statistics over all images, on at most one screen.

    If all statistics would take more than a screen, print only each template's first statistic. Without metrics, print
    the results for the raters.
    """
    for warning in findings.warnings:
        warn(console, warning)
    with console.capture() as overall:
        _show_overall(console, findings)
    if not _group_by_template(findings):
        _show_raters(console, findings, MAX_PRINTED_ROWS)
        _show_tables(console, findings.graph_contents)
    elif overall.get().count("\n") <= MAX_TABLE_LINES:
        _show_overall(console, findings)
    else:
        _show_first_statistics(console, findings)


def show_written_files(console: Console, findings: Findings, hint: str = "") -> None:
    """Print the path of the folder with the results, followed by a `hint`, and list the files in the folder."""
    say(console, f"written to {findings.folder}/{hint}:")
    for file in findings.files:
        say(console, f"  {file:<27}{FILE_DESCRIPTIONS[file]}")


def show_conclusion(console: Console, findings: Findings) -> None:
    """Print the conclusion about agreement with human ratings, in the words of a run's report."""
    agreement = Agreement(
        findings.judgements, findings.comparisons, findings.notes, corrected=findings.corrected, orders=findings.orders
    )
    for sentence in (*describe_conclusions(agreement), *describe_contradictions(findings.corrected)):
        show_sentence(console, sentence)
    if NO_SCORES_NOTE in findings.notes:
        say(console, NO_SCORES_NOTE)


def show_findings(console: Console, findings: Findings) -> None:
    """Print the overall statistics, the first statistic by skill, differences between metrics, and all other tables.

    The conventions and notes come last.
    """
    for warning in findings.warnings:
        warn(console, warning)
    _show_overall(console, findings)
    for title, judgements in _group_by_template(findings).items():
        _show_subsets(console, title, [judged for judged in judgements if judged.group != OVERALL])
    _show_raters(console, findings, max_rows=len(findings.judgements))
    _show_comparisons(console, findings.comparisons)
    _show_orders(console, findings.orders)
    _show_tables(
        console,
        [*make_relations_tables(findings.orders), *make_mean_tables(findings.corrected), *findings.graph_contents],
    )
    for matrix in findings.graph_correlations:
        if matrix.subset == OVERALL:
            table = matrix.make_table()
            rows = {name: dict(zip(table.names[1:], cells, strict=True)) for name, *cells in table.rows}
            show_tables(console, table.title, rows)
            say(console, table.caption)
    for line in (*list_conventions(findings.judgements), *findings.notes):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _show_tables(console: Console, tables: Sequence[ShownTable]) -> None:
    for table in tables:
        show_table(console, table.title, table.names, table.rows)
        say(console, table.caption)


def _show_overall(console: Console, findings: Findings) -> None:
    for title, judgements in _group_by_template(findings).items():
        overall = [judged for judged in judgements if judged.group == OVERALL]
        shown = [judged for judged in overall if not judged.statistic.startswith("epsilon")]
        rows = _arrange_rows(
            {(judged.metric, judged.statistic): format_value(judged).replace(" ", "\n", 1) for judged in shown}
        )
        counts = _arrange_rows({(judged.metric, judged.statistic): str(judged.n) for judged in shown})
        for column, numbers in make_count_columns(counts).items():
            for name, row in rows.items():
                row[column] = numbers.get(name, EMPTY_CELL)
        show_tables(console, title, rows)


def _show_first_statistics(console: Console, findings: Findings) -> None:
    cells: dict[tuple[str, str], str] = {}
    for judgements in _group_by_template(findings).values():
        statistic = judgements[0].statistic
        first = [judged for judged in judgements if (judged.group, judged.statistic) == (OVERALL, statistic)]
        for judged in sorted(first, key=lambda judged: math.inf if math.isnan(judged.value) else -judged.value):
            template = f"{judged.template or 'ground truth'}: {judged.statistic}"
            cells[judged.metric, template] = f"{format_value(judged)} n {judged.n:,}"
    rows = _arrange_rows(cells)
    first_rows = dict(list(rows.items())[:MAX_PRINTED_ROWS])
    left = show_tables(console, f"{findings.protocol}: agreement with people", first_rows, max_tables=1)
    if left_out := [*list(rows)[MAX_PRINTED_ROWS:], *left]:
        say(console, f"in {PAGE_FILE} only: {format_names(left_out)}")


def _group_by_template(findings: Findings) -> dict[str, list[Judgement]]:
    """Return the judgements of the metrics (not of people) by table title; each rating template has its own table."""
    titled: dict[str, list[Judgement]] = {}
    for judged in findings.judgements:
        if judged.metric != PEOPLE:
            title = f"{findings.protocol}: agreement with {judged.template or 'the ground truth'}"
            titled.setdefault(title, []).append(judged)
    return titled


def _show_subsets(console: Console, title: str, judgements: Sequence[Judgement]) -> None:
    """Print a table of the first statistic by subset and metric; the labels of the subsets contain the sample sizes."""
    if not judgements:
        return
    statistic = judgements[0].statistic
    shown = [judged for judged in judgements if judged.statistic == statistic]
    n: dict[str, int] = {}
    for judged in shown:
        n[judged.group] = max(judged.n, n.get(judged.group, 0))
    cells = {
        (f"{judged.group} ({n[judged.group]})", judged.metric): format_value(judged).partition(" ")[0]
        for judged in shown
    }
    show_tables(console, f"{title}: {statistic} by skill (n)", _arrange_rows(cells))


def _arrange_rows(cells: Mapping[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    """Arrange cells that are keyed by pairs of names as rows of a table.

    The columns are the first or the second names of the pairs, whichever are fewer.
    """
    first, second = (dict.fromkeys(pair[kind] for pair in cells) for kind in (0, 1))
    if len(second) <= len(first):
        return {down: {across: cells.get((down, across), EMPTY_CELL) for across in second} for down in first}
    return {down: {across: cells.get((across, down), EMPTY_CELL) for across in first} for down in second}


def _show_raters(console: Console, findings: Findings, max_rows: int) -> None:
    rows = [
        (judged.group, judged.template, judged.statistic, format_value(judged), str(judged.n))
        for judged in findings.judgements
        if judged.metric == PEOPLE
    ]
    if rows:
        show_table(console, "the raters", ("", "template", "statistic", "value", "n"), rows[:max_rows])
    if rows[max_rows:]:
        say(console, f"{len(rows[max_rows:])} more rows in {PAGE_FILE}")


def _show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    matrices: dict[str, list[Comparison]] = {}
    for compared in comparisons:
        name = " ".join(filter(None, (compared.template, compared.statistic)))
        matrices.setdefault(name, []).append(compared)
    for name, pairs in matrices.items():
        metrics = list(dict.fromkeys(metric for pair in pairs for metric in (pair.metric_a, pair.metric_b)))
        cells = {(pair.metric_a, pair.metric_b): _format_difference(pair, pair.difference) for pair in pairs}
        cells |= {(pair.metric_b, pair.metric_a): _format_difference(pair, -pair.difference) for pair in pairs}
        table = Table("", *map(str, range(1, len(metrics) + 1)), title=escape(f"{name}: which metrics differ"))
        table.caption = f"row minus column; * p < {SIGNIFICANCE} after Holm; {pairs[0].test}"
        for number, metric in enumerate(metrics, 1):
            table.add_row(f"{number} {escape(metric)}", *(cells.get((metric, other), "") for other in metrics))
        console.print(table)


def _format_difference(compared: Comparison, difference: float) -> str:
    mark = "*" if compared.p_holm < SIGNIFICANCE else " "
    return "" if math.isnan(difference) else f"{difference:+.2f}{mark}"


def _show_orders(console: Console, orders: Sequence[Order]) -> None:
    if not orders:
        return
    better = {
        (order.generator_a, order.generator_b, order.judge, order.template): order.better or EMPTY_CELL
        for order in orders
    }
    judges = list(dict.fromkeys((order.judge, order.template) for order in orders))
    table = Table("generators", *(escape(" ".join(filter(None, judge))) for judge in judges), title="which is better")
    for pair in dict.fromkeys((order.generator_a, order.generator_b) for order in orders):
        table.add_row(escape(", ".join(pair)), *(escape(better.get((*pair, *judge), "")) for judge in judges))
    table.caption = "\n".join(dict.fromkeys(escape(order.convention) for order in orders))
    console.print(table)
