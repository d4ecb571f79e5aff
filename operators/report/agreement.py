"""Shows how well a run's metrics agree with people, in sentences, tables and charts."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from plumbline.operators.base.sentences import (
    FirstRows,
    Sentence,
    ShownTable,
    describe_interval,
    format_names,
    format_number,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.metaeval.contradicted_images import ContradictedImage
from plumbline.operators.metaeval.corrected_means import CorrectedMean
from plumbline.operators.metaeval.corrected_tables import describe_contradictions, format_order, make_mean_tables
from plumbline.operators.metaeval.graphs import MEASURE_NAMES, CorrelationMatrix
from plumbline.operators.metaeval.judgement import OVERALL, PEOPLE, Comparison, Judgement, Order
from plumbline.operators.metaeval.orders import ORDERING_STATISTIC
from plumbline.operators.metaeval.paper_tables import make_tables
from plumbline.operators.metaeval.preferences import ACCURACY_STATISTIC
from plumbline.operators.metaeval.trust import allows_verdict, describe_trust, make_trust_tables
from plumbline.operators.metaeval.word_ratings import TEMPLATE_NAME as WORDS
from plumbline.operators.report.charts import NamedChart, draw_corrected_charts, draw_violin_charts
from plumbline.operators.report.error_graphs import ShownGraph, draw_graph_charts, make_shown_graphs
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.options import PAIRWISE_STATISTICS

MAX_SHOWN_TABLES = 40
MAX_CORRELATED_METRICS = 24
"""Maximum number of metrics in a correlation table."""
MAX_ORDERED_GENERATORS = 8
"""Maximum number of generators listed when the report describes people's order."""
GROUND_TRUTH_NAME = "the ground truth"
"""Text used in place of a template's name if metrics are compared with known errors or pairings."""


class Agreement(NamedTuple):
    """Results of comparing a run's metrics with people's ratings or with known errors."""

    judgements: Sequence[Judgement]
    comparisons: Sequence[Comparison]
    notes: Sequence[str]
    """Warnings, and notes on how each statistic was computed."""
    corrected: Sequence[CorrectedMean] = ()
    contradicted: Sequence[ContradictedImage] = ()
    graph_correlations: Sequence[CorrelationMatrix] = ()
    """Correlations between the metrics' results on error graphs."""
    graphs: pd.DataFrame | None = None
    """Results for every error graph, by metric and convention (schema GRAPHS)."""
    graph_images: pd.DataFrame | None = None
    """Every image of the error graphs, by metric (schema GRAPH_IMAGES)."""
    orders: Sequence[Order] = ()
    ratings: pd.DataFrame | None = None
    """Every rated image, by template (schema MEAN_RATINGS)."""


class AgreementSection(NamedTuple):
    """The report's section on agreement with people: sentences, tables and charts, ready to be arranged."""

    sentences: list[Sentence]
    tables: list[ShownTable]
    """Tables over all images, followed by tables about the raters themselves."""
    by_skill: FirstRows[ShownTable]
    trust: list[Sentence]
    trust_tables: list[ShownTable]
    contradictions: list[Sentence]
    corrected: list[ShownTable]
    """Generators' means estimated from people's ratings and metrics together, and the resulting orders."""
    charts: list[NamedChart]
    notes: Sequence[str]
    graph_correlations: list[CorrelationMatrix]
    graph_correlations_by_skill: FirstRows[ShownTable]
    graph_charts: list[NamedChart]
    shown_graphs: list[ShownGraph]
    rating_charts: list[NamedChart]


def make_agreement_section(agreement: Agreement) -> AgreementSection:
    """Return the report's section on agreement with people, with at most MAX_SHOWN_TABLES tables by skill."""
    people = [judged for judged in agreement.judgements if judged.metric == PEOPLE]
    by_skill = [judged for judged in agreement.judgements if judged.metric != PEOPLE and judged.group != OVERALL]
    overall = _group_overall_by_template(agreement.judgements)
    matrices = [matrix for matrix in agreement.graph_correlations if matrix.subset == OVERALL]
    matrices_by_skill = [matrix for matrix in agreement.graph_correlations if matrix.subset != OVERALL]
    graphs, images, ratings = agreement.graphs, agreement.graph_images, agreement.ratings
    whole = [
        (template or GROUND_TRUTH_NAME, frame) for template in overall for _, frame in make_tables(overall[template])
    ]
    return AgreementSection(
        sentences=describe_conclusions(agreement),
        tables=[*_format_tables(whole), *_format_tables(make_tables(people), metrics_across=False)],
        by_skill=take_first_rows(_format_tables(make_tables(by_skill)), MAX_SHOWN_TABLES),
        trust=describe_trust(agreement.judgements),
        trust_tables=make_trust_tables(agreement.judgements),
        contradictions=describe_contradictions(agreement.corrected),
        corrected=make_mean_tables(agreement.corrected),
        charts=draw_corrected_charts(agreement.corrected),
        notes=agreement.notes,
        graph_correlations=[matrix.select_first(MAX_CORRELATED_METRICS) for matrix in matrices],
        graph_correlations_by_skill=take_first_rows(
            [matrix.select_first(MAX_CORRELATED_METRICS).make_table() for matrix in matrices_by_skill], MAX_SHOWN_TABLES
        ),
        graph_charts=[] if graphs is None else draw_graph_charts(graphs, matrices),
        shown_graphs=[] if graphs is None or images is None else make_shown_graphs(graphs, images),
        rating_charts=[] if ratings is None else draw_violin_charts(ratings),
    )


def describe_conclusions(agreement: Agreement) -> list[Sentence]:
    """Return sentences about the best metric per template, undefined statistics, and how people rank the generators."""
    sentences: list[Sentence] = []
    for judgements in _group_overall_by_template(agreement.judgements).values():
        sentences += [_describe_best_metric(judgements, agreement.comparisons), *_explain_missing_values(judgements)]
    return [*sentences, *_describe_separation(agreement)]


def _group_overall_by_template(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    overall: dict[str, list[Judgement]] = {}
    for judged in judgements:
        if judged.metric != PEOPLE and judged.group == OVERALL:
            overall.setdefault(judged.template, []).append(judged)
    return overall


def _format_tables(titled: Sequence[tuple[str, pd.DataFrame]], *, metrics_across: bool = True) -> list[ShownTable]:
    tables_of_text = []
    for title, frame in titled:
        frame = frame.rename(columns=lambda statistic: statistic.replace("_", " "))
        frame = frame.T if metrics_across else frame
        lines = [(name, *(cell.replace(" ", "\n", 1) for cell in cells)) for name, *cells in frame.itertuples()]
        caption = "Values, with 95% intervals over prompts."
        tables_of_text.append(ShownTable(title, caption, ("", *frame.columns), lines))
    return tables_of_text


def _describe_best_metric(judgements: Sequence[Judgement], comparisons: Sequence[Comparison]) -> Sentence:
    template, statistic = judgements[0].template, judgements[0].statistic
    about = f"with {template or GROUND_TRUTH_NAME} by {statistic}"
    own = [judged for judged in judgements if judged.statistic == statistic]
    values = [judged for judged in own if math.isfinite(judged.value)]
    if not values:
        return Sentence("No metric has a value", f"for its agreement {about}{_format_reason(own[0])}.")
    best = max(values, key=lambda judged: judged.value)
    if statistic == ORDERING_STATISTIC:
        leading = [judged.metric for judged in values if judged.value == best.value]
        return Sentence(
            f"{format_names(leading)} {'orders' if len(leading) == 1 else 'order'} generators most like people",
            f"{about} ({format_number(best.value)}, over {_describe_sample(best)}). "
            "It has no interval, so other metrics may do as well.",
        )
    low, high = best.interval
    found = f"{format_number(best.value)}, {describe_interval(low, high)}, over {_describe_sample(best)}"
    if not allows_verdict(best):
        return Sentence(
            f"Not enough ratings to say which metric agrees best {about}:",
            f"{best.metric} has {found}.",
        )
    is_clear = {
        pair.metric_b if pair.metric_a == best.metric else pair.metric_a: pair.p_holm < SIGNIFICANCE
        for pair in comparisons
        if (pair.template, pair.statistic) == (template, statistic) and best.metric in (pair.metric_a, pair.metric_b)
    }
    parts = [f"{about} ({found})."]
    for lead, wanted in (("Clearly less", True), ("No clear difference", False), ("Not tested against it", None)):
        others = [judged.metric for judged in values if judged is not best]
        if metrics := [metric for metric in others if is_clear.get(metric) == wanted]:
            parts.append(f"{lead}: {format_names(metrics)}.")
    if missing := [f"{judged.metric}{_format_reason(judged)}" for judged in own if judged not in values]:
        parts.append(f"Without a value: {format_names(missing)}.")
    return Sentence(f"{best.metric} agrees best", " ".join(parts))


def _describe_sample(judged: Judgement) -> str:
    if judged.statistic in (*PAIRWISE_STATISTICS, ACCURACY_STATISTIC):
        rows = f"{format_quantity(judged.n, 'pair')} of images"
    elif judged.statistic == ORDERING_STATISTIC:
        rows = f"{format_quantity(judged.n, 'pair')} of generators"
    elif judged.template == WORDS:
        rows = format_quantity(judged.n, "word")
    elif judged.template:
        rows = format_quantity(judged.n, "image")
    else:
        rows = format_quantity(judged.n, "error graph" if judged.statistic.startswith(MEASURE_NAMES) else "sample")
    return f"{rows} of {format_quantity(judged.n_prompts, 'prompt')}" if judged.n_prompts else rows


def _format_reason(judged: Judgement) -> str:
    """Return why a statistic is undefined, such as ` (all scores are equal)`, or an empty string if it is defined."""
    reason = judged.convention.partition("undefined: ")[2].partition(";")[0]
    return f" ({reason})" if reason else ""


def _explain_missing_values(judgements: Sequence[Judgement]) -> Iterator[Sentence]:
    reasons: dict[str, list[str]] = {}
    for statistic in list(dict.fromkeys(judged.statistic for judged in judgements))[1:]:
        own = [judged for judged in judgements if judged.statistic == statistic]
        if all(math.isnan(judged.value) for judged in own) and not statistic.startswith("epsilon"):
            reasons.setdefault(_format_reason(own[0]), []).append(statistic)
    for reason, statistics in reasons.items():
        yield Sentence(
            "No value", f"for {format_names(statistics)} with {judgements[0].template or GROUND_TRUTH_NAME}{reason}."
        )


def _describe_separation(agreement: Agreement) -> Iterator[Sentence]:
    """Yield, per template, a sentence on how many pairs of generators people distinguish, and on the mean ratings."""
    by_people: dict[str, dict[str, list[Order]]] = {}
    for order in agreement.orders:
        if order.judge.startswith(PEOPLE):
            by_people.setdefault(order.template, {}).setdefault(order.judge, []).append(order)
    for template, by_judge in by_people.items():
        orders = max(by_judge.values(), key=lambda orders: sum(order.n for order in orders))
        n_clear = sum(bool(order.better) for order in orders)
        means = {
            judged.generator: judged.value
            for judged in agreement.judgements
            if (judged.metric, judged.template, judged.statistic, judged.subset)
            == (PEOPLE, template, "mean_rating", OVERALL)
        }
        first = dict(sorted(means.items(), key=lambda mean: -mean[1])[:MAX_ORDERED_GENERATORS])
        more = f" and {len(means) - len(first)} more" if len(means) > len(first) else ""
        ratings = f"; mean ratings: {format_order(first)}{more}" if first else ""
        yield Sentence(
            f"People's ratings distinguish {n_clear} of {format_quantity(len(orders), 'pair')} of generators",
            f"by {template}{ratings}.",
        )
