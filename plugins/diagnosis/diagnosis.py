"""The diagnosis of a run's metrics, and the tables that show it."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from plumbline.operators.base.sentences import (
    NO_INTERVAL_NOTE,
    ShownTable,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_signed,
)
from plumbline.operators.results.metric_correlations import Correlation
from plumbline.plugins.diagnosis.ablations import AblationEffect
from plumbline.plugins.diagnosis.questions import AnswerStatistics, QuestionKind, QuestionStatistics

MAX_SHOWN_KINDS = 8
"""Maximum number of question kinds shown per metric."""
NOTHING_DENIED_TEXT = "nothing"
"""Value of the column `denied` for a metric that has all its inputs."""


class Diagnosis(NamedTuple):
    """Results of a diagnosis; each field contains the rows of a table."""

    correlations: Sequence[Correlation] = ()
    questions: Sequence[QuestionStatistics] = ()
    kinds: Sequence[QuestionKind] = ()
    answers: Sequence[AnswerStatistics] = ()
    effects: Sequence[AblationEffect] = ()


def make_tables(diagnosis: Diagnosis) -> list[ShownTable]:
    """Return the diagnosis as tables of text, leaving out empty tables."""
    tables = (
        _tabulate_effects(diagnosis.effects),
        _tabulate_answers(diagnosis.answers),
        _tabulate_questions(diagnosis.questions),
        _tabulate_kinds(diagnosis.kinds),
        _tabulate_metric_correlations([row for row in diagnosis.correlations if row.kind == "metric"]),
        _tabulate_property_correlations([row for row in diagnosis.correlations if row.kind == "property"]),
    )
    return [table for table in tables if table.rows]


def _tabulate_effects(effects: Sequence[AblationEffect]) -> ShownTable:
    return ShownTable(
        "Scores without an input",
        "Means with the input (whole) and without it (left) over the images that have both scores, and the difference "
        "with its 95% interval. A metric that keeps its score without the image, or with the image of another prompt, "
        "does not measure the image. Rank correlation: of an image's scores with and without the input; order: "
        "Kendall's tau of the generators' means." + _explain_missing_intervals(effects),
        ("metric", "denied", "whole", "left", "difference", "95% interval", "rank correlation", "order", "images",
         "null"),
        [
            (
                row.metric, row.denied, format_number(row.whole), format_number(row.left),
                format_signed(row.difference), format_interval(row.low, row.high, format_signed),
                format_number(row.rho, 2), format_number(row.order, 2), format_count(row.n), format_count(row.n_null),
            )
            for row in effects
        ],
    )  # fmt: skip


def _tabulate_answers(answers: Sequence[AnswerStatistics]) -> ShownTable:
    return ShownTable(
        "Answers",
        "Right: the share of all answers that are right. Says yes and yes is right: shares of the answers to yes-or-no "
        "questions. Takes the first: the share of answers to multiple-choice questions that are the first choice. A "
        "model that says yes equally often about images of other prompts has a bias to yes. Questions that are "
        "answered right without the image can be answered blind.",
        ("metric", "denied", "answers", "right", "says yes", "yes is right", "of", "takes the first", "of"),
        [
            (
                row.metric, row.denied or NOTHING_DENIED_TEXT, format_count(row.answers), format_percent(row.right),
                format_percent(row.yes), format_percent(row.wanted), format_count(row.yes_no),
                format_percent(row.first), format_count(row.choices),
            )
            for row in answers
        ],
    )  # fmt: skip


def _tabulate_questions(questions: Sequence[QuestionStatistics]) -> ShownTable:
    return ShownTable(
        "Questions",
        "Repeated: the share of questions with the same content words and right answer as an earlier question about "
        "the prompt. Always yes: the score of answering yes to every yes-or-no question and choosing the first choice "
        "of all others. Chance: the score of random answers; if the metric zeroes questions whose parents are answered "
        "wrong, they are zeroed here too.",
        ("metric", "prompts", "questions", "each", "yes or no", "yes is right", "first is right", "repeated",
         "always yes", "chance"),
        [
            (
                row.metric, format_count(row.prompts), format_count(row.questions),
                format_number(row.questions / row.prompts if row.prompts else math.nan, 1), format_percent(row.yes_no),
                format_percent(row.yes), format_percent(row.first), format_percent(row.repeated),
                format_number(row.majority), format_number(row.chance),
            )
            for row in questions
        ],
    )  # fmt: skip


def _tabulate_kinds(kinds: Sequence[QuestionKind]) -> ShownTable:
    lines = []
    for metric, group in groupby(kinds, key=lambda row: row.metric):
        shares = [f"{row.kind} {format_percent(row.share)}" for row in group]
        more = f" and {len(shares) - MAX_SHOWN_KINDS} more" if len(shares) > MAX_SHOWN_KINDS else ""
        lines.append((metric, ", ".join(shares[:MAX_SHOWN_KINDS]) + more))
    caption = "Shares of the kinds that the writer of the questions assigned."
    return ShownTable("Kinds of questions", caption, ("metric", "kinds"), lines)


def _tabulate_metric_correlations(correlations: Sequence[Correlation]) -> ShownTable:
    lines = []
    for (metric, other), group in _group_finite_correlations(correlations).items():
        lowest, highest = min(group, key=lambda row: row.rho), max(group, key=lambda row: row.rho)
        lines.append(
            (
                metric,
                other,
                _format_mean(group),
                _format_correlation(lowest),
                _format_correlation(highest),
                format_count(sum(r.n for r in group)),
            )
        )
    return ShownTable(
        "Correlations between metrics",
        "Spearman's rank correlation over the images that have both scores: the mean over the generators, and the "
        "lowest and highest with their 95% intervals. Metrics that correlate strongly add little to each other."
        + _explain_missing_intervals(correlations),
        ("metric", "and", "mean", "lowest", "highest", "images"),
        lines,
    )


def _tabulate_property_correlations(correlations: Sequence[Correlation]) -> ShownTable:
    names = list(dict.fromkeys(row.other for row in correlations))
    grouped = _group_finite_correlations(correlations)
    metrics = list(dict.fromkeys(metric for metric, _ in grouped))
    lines = [(metric, *(_format_range(grouped.get((metric, name), [])) for name in names)) for metric in metrics]
    return ShownTable(
        "Correlations with properties of prompts",
        "Spearman's rank correlation of a generator's scores with a property of their prompts. Values are the mean "
        "over the generators, the lowest and the highest. Length: number of content words. Grade: Flesch and "
        "Kincaid's. Depth: of the parse; central_depth: of branches that turn at every word; yngve: "
        "mean of Yngve's depths. Entities: number of different nouns. Questions: number of the metric's questions.",
        ("metric", *names),
        lines,
    )


def _group_finite_correlations(correlations: Iterable[Correlation]) -> dict[tuple[str, str], list[Correlation]]:
    grouped: dict[tuple[str, str], list[Correlation]] = {}
    for row in correlations:
        if math.isfinite(row.rho):
            grouped.setdefault((row.metric, row.other), []).append(row)
    return grouped


def _format_mean(correlations: Sequence[Correlation]) -> str:
    return format_number(fmean(row.rho for row in correlations), 2)


def _format_correlation(row: Correlation) -> str:
    interval = format_interval(row.low, row.high, partial(format_number, digits=2))
    return f"{format_number(row.rho, 2)} ({interval}), {row.generator}"


def _explain_missing_intervals(records: Iterable[AblationEffect | Correlation]) -> str:
    return f" {NO_INTERVAL_NOTE}" if any(math.isnan(row.low) for row in records) else ""


def _format_range(correlations: Sequence[Correlation]) -> str:
    if not correlations:
        return format_number(None)
    rhos = [row.rho for row in correlations]
    return f"{_format_mean(correlations)} ({format_number(min(rhos), 2)} to {format_number(max(rhos), 2)})"
