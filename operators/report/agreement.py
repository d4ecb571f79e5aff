"""How far a run's metrics agree with people, as its judging found it, in words and tables."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from plumbline.operators.comparison import SIGNIFICANT
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.judging.contradicted_images import ContradictedImage
from plumbline.operators.judging.corrected_means import CorrectedMean
from plumbline.operators.judging.corrected_tables import contradictions, shown_means
from plumbline.operators.judging.graph_correlations import CorrelationMatrix
from plumbline.operators.judging.judgement import OVERALL, PEOPLE, Comparison, Judgement
from plumbline.operators.judging.paper_tables import tables
from plumbline.operators.judging.trust import has_enough, trust_sentences, trust_tables
from plumbline.operators.report.charts import NamedChart, corrected_charts
from plumbline.operators.report.graph_charts import graph_charts
from plumbline.operators.sentences import FirstRows, Sentence, interval_sentence, names, number, shown

MOST_TABLES = 40
KNOWN = "what is known"
"""What metrics are set beside where nobody was asked."""


class Agreement(NamedTuple):
    """What a run's judging found."""

    judgements: Sequence[Judgement]
    comparisons: Sequence[Comparison]
    """Of every two metrics."""
    notes: Sequence[str]
    """How each statistic was computed, and what is to be known before believing it."""
    corrected: Sequence[CorrectedMean] = ()
    contradicted: Sequence[ContradictedImage] = ()
    graph_correlations: Sequence[CorrelationMatrix] = ()
    """Between metrics, over their scores of error graphs."""
    graphs: pd.DataFrame | None = None
    """Every error graph by metric and convention, in schema GRAPHS."""


class ShownAgreement(NamedTuple):
    """It as the page shows it."""

    sentences: list[Sentence]
    """What the first statistic says of everything that people were asked."""
    tables: list[ShownTable]
    """Over all images, and of the raters themselves."""
    by_skill: FirstRows[ShownTable]
    trust: list[Sentence]
    """How far to trust each metric, at which skills."""
    trust_tables: list[ShownTable]
    contradictions: list[Sentence]
    """On which generators metrics contradict people."""
    corrected: list[ShownTable]
    """Means of generators by people and metrics together, and their orders."""
    charts: list[NamedChart]
    """The same means, by template and metric."""
    notes: Sequence[str]
    graph_correlations: list[CorrelationMatrix]
    """Over all error graphs."""
    graph_correlations_by_skill: FirstRows[ShownTable]
    graph_charts: list[NamedChart]


def show_agreement(agreement: Agreement) -> ShownAgreement:
    """All of it, metrics across; of many skills the tables of the first."""
    people = [judged for judged in agreement.judgements if judged.metric == PEOPLE]
    of_metrics = [judged for judged in agreement.judgements if judged.metric != PEOPLE]
    overall: dict[str, list[Judgement]] = {}
    for judged in of_metrics:
        if judged.subset == OVERALL:
            overall.setdefault(judged.template, []).append(judged)
    by_skill = [judged for judged in of_metrics if judged.subset != OVERALL]
    matrices = [matrix for matrix in agreement.graph_correlations if matrix.subset == OVERALL]
    whole = [(template or KNOWN, frame) for template in overall for _, frame in tables(overall[template])]
    return ShownAgreement(
        sentences=[_sentence(judged, agreement.comparisons) for judged in overall.values()],
        tables=[*_shown(whole), *_shown(tables(people), metrics_across=False)],
        by_skill=shown(_shown(tables(by_skill)), MOST_TABLES),
        trust=trust_sentences(agreement.judgements),
        trust_tables=trust_tables(agreement.judgements),
        contradictions=contradictions(agreement.corrected),
        corrected=shown_means(agreement.corrected),
        charts=corrected_charts(agreement.corrected),
        notes=agreement.notes,
        graph_correlations=matrices,
        graph_correlations_by_skill=shown(
            [matrix.as_table() for matrix in agreement.graph_correlations if matrix.subset != OVERALL], MOST_TABLES
        ),
        graph_charts=[] if agreement.graphs is None else graph_charts(agreement.graphs, matrices),
    )


def _shown(titled: Sequence[tuple[str, pd.DataFrame]], *, metrics_across: bool = True) -> list[ShownTable]:
    """Tables of text, the interval of each value on a line below it."""
    made = []
    for title, frame in titled:
        frame = frame.rename(columns=lambda statistic: statistic.replace("_", " "))
        frame = frame.T if metrics_across else frame
        lines = [(name, *(cell.replace(" ", "\n", 1) for cell in cells)) for name, *cells in frame.itertuples()]
        made.append(ShownTable(title, "Values, with 95% intervals over prompts.", ("", *frame.columns), lines))
    return made


def _sentence(judgements: Sequence[Judgement], comparisons: Sequence[Comparison]) -> Sentence:
    """Say which metric agrees best by the first statistic of a template, and from which metrics it differs clearly."""
    template, statistic = judgements[0].template, judgements[0].statistic
    about = f"with {template or KNOWN} by {statistic}"
    values = [judged for judged in judgements if judged.statistic == statistic and math.isfinite(judged.value)]
    if not values:
        return Sentence("No metric has a value", f"of its agreement {about}.")
    best = max(values, key=lambda judged: judged.value)
    low, high = best.interval
    interval = f", {interval_sentence(low, high)}"
    if not has_enough(best):
        return Sentence(
            f"Not enough ratings to say which metric agrees best {about}:",
            f"{best.metric} has {number(best.value)}{interval}.",
        )
    is_clear = {
        pair.metric_b if pair.metric_a == best.metric else pair.metric_a: pair.p_holm < SIGNIFICANT
        for pair in comparisons
        if (pair.template, pair.statistic) == (template, statistic) and best.metric in (pair.metric_a, pair.metric_b)
    }
    said = [f"{about} ({number(best.value)}{interval})."]
    for lead, wanted in (("Clearly less", True), ("Cannot be told from it", False)):
        if metrics := [metric for metric, clear in is_clear.items() if clear == wanted]:
            said.append(f"{lead}: {names(metrics)}.")
    return Sentence(f"{best.metric} agrees best", " ".join(said))
