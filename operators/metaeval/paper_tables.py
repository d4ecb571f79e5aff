"""Formats judgements as tables for a paper: metrics down, statistics across, in Markdown and LaTeX."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from plumbline.operators.base.extensions import require_extra
from plumbline.operators.base.sentences import ShownTable, escape_latex
from plumbline.operators.metaeval.judgement import OVERALL, PEOPLE, Judgement

EMPTY_CELL = "-"


def to_markdown(judgements: Sequence[Judgement], notes: Sequence[str] = (), further: Sequence[ShownTable] = ()) -> str:
    """Return a table for each template and subset, then the `further` tables, and then the conventions and notes.

    Raise MissingExtraError if tabulate, with which pandas formats tables, is not installed.
    """
    require_extra("people", "a table of agreement with people")
    parts = [
        f"### {title}\n\n{frame.to_markdown(disable_numparse=True)}\n"
        for title, frame in make_tables(judgements)
        if len(frame)
    ]
    for table in further:
        cells = [[cell.replace("\n", " ") for cell in row] for row in table.rows]
        frame = pd.DataFrame(cells, columns=table.names).set_index(table.names[0])
        parts.append(f"### {table.title}\n\n{table.caption}\n\n{frame.to_markdown(disable_numparse=True)}\n")
    lines = [f"- {text}" for text in [*list_conventions(judgements), *notes]]
    return "\n".join([*parts, *lines]) + "\n"


def to_latex(judgements: Sequence[Judgement]) -> str:
    """Return the tables of `make_tables` as LaTeX, with booktabs rules and escaped text."""
    return "\n".join(
        frame.to_latex(escape=True, caption=escape_latex(title))
        for title, frame in make_tables(judgements)
        if len(frame)
    )


def make_tables(judgements: Sequence[Judgement]) -> list[tuple[str, pd.DataFrame]]:
    """Return titled tables with a row per metric and a column per statistic; tables about people alone come last."""
    groups: dict[tuple[bool, str, str], list[Judgement]] = {}
    for judged in judgements:
        people = judged.metric == PEOPLE
        by_skill = f"{judged.statistic} by generator and skill" if judged.is_by_generator_and_skill else ""
        groups.setdefault((people, judged.template, by_skill if people else judged.group), []).append(judged)
    titled = []
    for key in sorted(groups, key=lambda key: (*key[:2], key[2] != OVERALL, key[2])):
        people, template, group = key
        title = ", ".join(filter(None, (PEOPLE if people else "", template, group)))
        titled.append((title, _make_table(groups[key])))
    return titled


def _make_table(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Return a table of values with intervals.

    The rows are metrics and the columns are statistics. In a table about people, the rows are groups and the columns
    are statistics, or the rows are skills and the columns are generators.
    """
    lines: dict[str, dict[str, str]] = {}
    counts: dict[str, dict[str, str]] = {}
    for judged in judgements:
        name, column = judged.group if judged.metric == PEOPLE else judged.metric, judged.statistic
        if judged.metric == PEOPLE and judged.is_by_generator_and_skill:
            name, column = judged.subset, judged.generator
        lines.setdefault(name, {})[column] = format_value(judged)
        counts.setdefault(name, {})[column] = str(judged.n)
    columns = list(dict.fromkeys(column for line in lines.values() for column in line))
    values = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return values.assign(**make_count_columns(counts)).fillna(EMPTY_CELL).rename_axis("metric")


def make_count_columns(counts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the columns that show a table's sample sizes, given the `n` of every cell by row and column."""
    groups: dict[str, dict[str, str]] = {}
    for column in dict.fromkeys(name for row in counts.values() for name in row):
        n = {name: row[column] for name, row in counts.items() if row.get(column, EMPTY_CELL) != EMPTY_CELL}
        same = (group for group in groups.values() if all(group.get(name, n[name]) == n[name] for name in n))
        if (group := next(same, None)) is None:
            group = groups.setdefault(f"n of {column}" if groups else "n", {})
        group.update(n)
    return groups


def format_value(judged: Judgement) -> str:
    """Return the value and its interval, such as `0.597 [0.552, 0.640]`, or a dash if the value is undefined."""
    if math.isnan(judged.value):
        return EMPTY_CELL
    low, high = judged.interval
    return f"{judged.value:.3f}" + ("" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]")


def list_conventions(judgements: Sequence[Judgement]) -> list[str]:
    """Return lines of text on how each statistic was computed, and on rows without a score or a rating.

    A line is about a single metric if metrics were computed differently, for example with different epsilons.
    """
    overall = [
        judged
        for judged in judgements
        if judged.group == OVERALL or (judged.metric == PEOPLE and not judged.is_by_generator_and_skill)
    ]
    by_statistic: dict[str, set[str]] = {}
    for judged in overall:
        by_statistic.setdefault(judged.statistic, set()).add(judged.convention)
    lines = []
    for statistic, texts in by_statistic.items():
        if len(texts) == 1:
            lines.append(f"{statistic}: {next(iter(texts))}")
        else:
            differing = (judged for judged in overall if judged.statistic == statistic)
            lines += dict.fromkeys(f"{statistic}, {judged.metric}: {judged.convention}" for judged in differing)
    unmatched = {judged.metric: judged for judged in overall if judged.n_unscored or judged.n_unrated}
    lines += [
        f"{metric}: {judged.n_unscored} rated rows without a score, {judged.n_unrated} scored rows without a rating"
        for metric, judged in unmatched.items()
    ]
    return lines
