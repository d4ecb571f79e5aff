"""A diagnosis of a run's metrics: its tables as they are kept, and as a person reads them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import WHY_NO_INTERVAL, count, interval_text, number, signed
from plumbline.operators.diagnosis.ablations import AblationEffect
from plumbline.operators.diagnosis.correlations import Correlation
from plumbline.operators.diagnosis.questions import AnswerStatistics, QuestionKind, QuestionStatistics

MOST_KINDS = 8
"""Kinds of questions that are shown of a metric."""
NOTHING = "nothing"
"""What the metric itself is denied."""


class Diagnosis(NamedTuple):
    """All that is told of a run's metrics."""

    correlations: Sequence[Correlation] = ()
    questions: Sequence[QuestionStatistics] = ()
    kinds: Sequence[QuestionKind] = ()
    answers: Sequence[AnswerStatistics] = ()
    effects: Sequence[AblationEffect] = ()

    def tables(self) -> dict[str, pa.Table]:
        """As they are kept, by name; what is undefined is null."""
        return {name: _table(getattr(self, name), schema) for name, (_, schema) in KEPT.items()}


KEPT: Mapping[str, tuple[Any, pa.Schema]] = {
    "correlations": (Correlation, schemas.CORRELATIONS),
    "questions": (QuestionStatistics, schemas.QUESTION_STATISTICS),
    "kinds": (QuestionKind, schemas.QUESTION_KINDS),
    "answers": (AnswerStatistics, schemas.ANSWER_STATISTICS),
    "effects": (AblationEffect, schemas.ABLATION_EFFECTS),
}


def _table(said: Sequence[Any], schema: pa.Schema) -> pa.Table:
    return rows.table([{name: _kept(value) for name, value in row._asdict().items()} for row in said], schema)


def _kept(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def diagnosis_of(tables: Mapping[str, pa.Table]) -> Diagnosis:
    """The diagnosis that was kept in these tables."""
    return Diagnosis(
        **{name: [_read(kind, row) for row in tables[name].to_pylist()] for name, (kind, _) in KEPT.items()}
    )


def _read(kind: Any, row: Mapping[str, Any]) -> Any:
    return kind(**{name: math.nan if value is None else value for name, value in row.items()})


class ShownTable(NamedTuple):
    """A table of text, for a page or a terminal."""

    title: str
    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


def shown_tables(diagnosis: Diagnosis) -> list[ShownTable]:
    """Those that have rows."""
    between = [one for one in diagnosis.correlations if one.kind == "metric"]
    with_prompts = [one for one in diagnosis.correlations if one.kind == "property"]
    tables = (
        _effects(diagnosis.effects),
        _answers(diagnosis.answers),
        _questions(diagnosis.questions),
        _kinds(diagnosis.kinds),
        _between(between),
        _with_properties(with_prompts),
    )
    return [table for table in tables if table.rows]


def _effects(effects: Sequence[AblationEffect]) -> ShownTable:
    return ShownTable(
        "What is left of a metric that is denied something",
        "Means over the images that have both scores, and the difference with its 95% interval. A metric that keeps "
        "its score without the image, or with another prompt's, does not measure the image. Rank correlation: of the "
        "scores with and without, over images; order: Kendall's tau of the generators' means." + _refusals(effects),
        ("metric", "denied", "whole", "left", "difference", "95% interval", "rank correlation", "order", "images",
         "null"),
        [
            (
                one.metric, one.denied, number(one.whole), number(one.left), signed(one.difference),
                interval_text(one.low, one.high, signed), number(one.rho, 2), number(one.order, 2),
                count(one.n), count(one.n_null),
            )
            for one in effects
        ],
    )  # fmt: skip


def _answers(answers: Sequence[AnswerStatistics]) -> ShownTable:
    return ShownTable(
        "What is answered",
        "Of all answers the share that is right; of answers to yes-or-no questions the share that says yes, beside the "
        "share where yes is right; of multiple choice the share that takes the first choice. Who says yes as often of "
        "images of other prompts has a bias to yes; what is answered right without the image can be answered blind.",
        ("metric", "denied", "answers", "right", "says yes", "yes is right", "of", "takes the first", "of"),
        [
            (
                one.metric, one.denied or NOTHING, count(one.answers), percent(one.right), percent(one.yes),
                percent(one.wanted), count(one.yes_no), percent(one.first), count(one.choices),
            )
            for one in answers
        ],
    )  # fmt: skip


def _questions(questions: Sequence[QuestionStatistics]) -> ShownTable:
    return ShownTable(
        "What is asked",
        "Repeated: the share of questions with the content words and the right answer of one before. Always yes: the "
        "score of who answers yes to every yes-or-no question and takes every first choice; chance: of who draws, "
        "where a wrong answer also zeroes the questions that need it, if the metric does so.",
        ("metric", "prompts", "questions", "each", "yes or no", "yes is right", "first is right", "repeated",
         "always yes", "chance"),
        [
            (
                one.metric, count(one.prompts), count(one.questions),
                number(one.questions / one.prompts if one.prompts else math.nan, 1), percent(one.yes_no),
                percent(one.yes), percent(one.first), percent(one.repeated), number(one.majority), number(one.chance),
            )
            for one in questions
        ],
    )  # fmt: skip


def _kinds(kinds: Sequence[QuestionKind]) -> ShownTable:
    lines = []
    for metric, of_metric in groupby(kinds, key=lambda one: one.metric):
        every = list(of_metric)
        said = ", ".join(f"{one.kind} {percent(one.share)}" for one in every[:MOST_KINDS])
        more = f" and {len(every) - MOST_KINDS} more" if len(every) > MOST_KINDS else ""
        lines.append((metric, said + more))
    return ShownTable(
        "What questions are about", "By the kinds that their writer gave them.", ("metric", "kinds"), lines
    )


def _between(correlations: Sequence[Correlation]) -> ShownTable:
    lines = []
    for (metric, other), each in _grouped(correlations).items():
        lowest, highest = min(each, key=lambda one: one.rho), max(each, key=lambda one: one.rho)
        lines.append((metric, other, _mean(each), _end(lowest), _end(highest), count(sum(one.n for one in each))))
    return ShownTable(
        "How far metrics go together",
        "Spearman's rank correlation over the images that both scored: the mean over the generators, and the lowest "
        "and the highest of them with its 95% interval. Metrics that go together tell little beyond each other."
        + _refusals(correlations),
        ("metric", "and", "mean", "lowest", "highest", "images"),
        lines,
    )


def _with_properties(correlations: Sequence[Correlation]) -> ShownTable:
    names = list(dict.fromkeys(one.other for one in correlations))
    grouped = _grouped(correlations)
    metrics = list(dict.fromkeys(metric for metric, _ in grouped))
    lines = [(metric, *(_spread(grouped.get((metric, name), [])) for name in names)) for metric in metrics]
    return ShownTable(
        "How far metrics go with what prompts are like",
        "Spearman's rank correlation of a generator's scores with a property of their prompts: the mean over the "
        "generators, and the lowest and highest. In length, content words count; grade is Flesch and Kincaid's; depth "
        "is the parse's, central_depth that of branches that turn at every word, yngve the mean of Yngve's; entities "
        "are different nouns; "
        "questions are the metric's own.",
        ("metric", *names),
        lines,
    )


def _grouped(correlations: Iterable[Correlation]) -> dict[tuple[str, str], list[Correlation]]:
    """Those that are defined, by metric and other."""
    grouped: dict[tuple[str, str], list[Correlation]] = {}
    for one in correlations:
        if math.isfinite(one.rho):
            grouped.setdefault((one.metric, one.other), []).append(one)
    return grouped


def _mean(each: Sequence[Correlation]) -> str:
    return number(fmean(one.rho for one in each), 2)


def _end(one: Correlation) -> str:
    return f"{number(one.rho, 2)} ({interval_text(one.low, one.high, partial(number, digits=2))}), {one.generator}"


def _refusals(found: Iterable[AblationEffect | Correlation]) -> str:
    """Return a sentence for a caption if an interval was refused."""
    return f" {WHY_NO_INTERVAL}" if any(math.isnan(one.low) for one in found) else ""


def _spread(each: Sequence[Correlation]) -> str:
    if not each:
        return number(None)
    rhos = [one.rho for one in each]
    return f"{_mean(each)} ({number(min(rhos), 2)} to {number(max(rhos), 2)})"


def percent(share: float) -> str:
    """A share as it is shown."""
    return number(None) if math.isnan(share) else f"{100 * share:.1f}%"
