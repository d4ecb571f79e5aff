"""Compares figures printed in "What makes a good metric?" with figures computed from released scores.

`make validity` writes the tables to the diagnosis plugin's page.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import ShownTable, format_count, format_number, format_percent
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.operators.results.metric_correlations import correlate_metrics
from plumbline.operators.results.prompt_properties import list_properties
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.markdown_sections import write_section
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.metaeval.releases import error_graphs, image_ratings
from plumbline.pipelines.metaeval.releases.sheets import read_objects, read_sheet
from plumbline.plugins.diagnosis.diagnosis import Diagnosis, make_tables
from plumbline.plugins.diagnosis.prompt_correlations import (
    PromptNumbers,
    compute_prompt_means,
    correlate_means_by_value,
    correlate_properties,
    make_prompt_numbers,
)
from plumbline.plugins.diagnosis.questions import QuestionCounts

PAPER_FIGURES_FILE = Path(__file__).parent / "paper_figures.csv"
"""Correlations printed in the paper, as ranges over five sources of images, with the released metrics to compare."""
TIFA160_METRICS = ("clipscore_vitb32", "tifa_blip2-flant5xl", "tifa_mplug-large")
T2ISCORESCORE_METRICS = ("clipscore", "instruct_blip_tifa", "instruct_blip_dsg")
"""Metrics in T2IScoreScore's release that appear in figure 1 of the paper; VPEval's scores were never released."""
MIN_PROMPTS = 20
"""Minimum number of prompts; generators with fewer prompts are left out."""


class PaperCorrelation(NamedTuple):
    """A correlation that the paper gives for several sources of images, and the released scores to compare it with."""

    figure: str
    metric: str
    other: str
    """Property of prompts that the metric is correlated with."""
    low: float
    high: float
    release: str
    ours: str
    """Name of the metric in the release."""


class ReleasedScores(NamedTuple):
    """Released scores, with the properties of their prompts."""

    scores: RunScores
    measured: Mapping[str, PromptNumbers]


def make_published_tables(reference: Place) -> list[ShownTable]:
    """Return tables that compare the paper's correlations and question statistics with the values that we compute.

    Raise SourceError if a released file is missing.
    """
    questions = _read_dsg_questions(reference)
    released = {
        "tifa160": _read_tifa160(reference),
        "t2iscorescore": _read_t2iscorescore(reference, questions),
    }
    together = [
        *correlate_metrics(released["tifa160"].scores, TIFA160_METRICS),
        *correlate_metrics(released["t2iscorescore"].scores, T2ISCORESCORE_METRICS),
    ]
    between = make_tables(Diagnosis(correlations=together))
    return [_make_correlation_table(released), *between, _make_question_table(questions)]


def _read_tifa160(reference: Place) -> ReleasedScores:
    place = reference / "tifa160/tifa160_human_and_scores.json"
    texts = {str(record["text_id"]): str(record["text"]) for record in read_objects(place).values()}
    return ReleasedScores(_make_run_scores(image_ratings.read_tifa160(place).scores), _measure_texts(texts))


def _read_t2iscorescore(reference: Place, questions: QuestionCounts) -> ReleasedScores:
    folder = reference / "ts2"
    metadata = read_sheet(folder / "ts2_metadata.csv")
    texts = dict(zip(metadata.ids("id"), metadata.ids("target_prompt"), strict=True))
    measured = {**_measure_texts(texts), "questions": questions.count_questions_per_prompt()}
    return ReleasedScores(_make_run_scores(error_graphs.read_t2iscorescore(folder).scores), measured)


def _make_run_scores(scores: pa.Table) -> RunScores:
    return RunScores([lambda columns: scores.select(list(columns))])


def _measure_texts(texts: Mapping[str, str]) -> dict[str, PromptNumbers]:
    hashes = hash_ids(list(texts))
    return {
        name: make_prompt_numbers(hashes, [of(text) for text in texts.values()])
        for name, of in list_properties({}).items()
    }


def _read_dsg_questions(reference: Place) -> QuestionCounts:
    sheet = read_sheet(reference / "ts2/ts2_dsg_questions.csv")
    columns = [sheet.ids(name) for name in ("id", "question_id", "question", "choices", "answer", "parent_question_id")]
    counts = QuestionCounts("DSG", "direct")
    counts.add(
        rows.table(
            [
                {"prompt_id": graph, "question_id": f"{graph}/{name}", "text": text, "choices": choices.split("|"),
                 "answer": answer, "parents": [f"{graph}/{one}" for one in parents.split("-") if parents != "-1"]}
                for graph, name, text, choices, answer, parents in zip(*columns, strict=True)
            ],
            schemas.QUESTIONS,
        )
    )  # fmt: skip
    return counts


def _make_correlation_table(released: Mapping[str, ReleasedScores]) -> ShownTable:
    figures = [PaperCorrelation(*row) for row in pd.read_csv(PAPER_FIGURES_FILE).itertuples(index=False)]
    return ShownTable(
        "Correlations with what prompts are like",
        "Spearman's rank correlation, as a range over the sources of images. Over prompts: of each prompt's mean "
        "score; over values: of the mean score at each value of the property. Sources with fewer than "
        f"{MIN_PROMPTS} prompts are left out.",
        ("figure", "metric", "property", "paper", "over prompts", "over values", "whose scores"),
        [_make_row(figure, released[figure.release]) for figure in figures],
    )


def _make_row(figure: PaperCorrelation, release: ReleasedScores) -> tuple[str, ...]:
    known = release.measured[figure.other]
    over_prompts = correlate_properties(release.scores, {figure.ours: {figure.other: known}})
    ours = [one for one in over_prompts if one.n >= MIN_PROMPTS]
    columns = release.scores.select_rows(figure.ours).select_scored()
    places = [release.scores.generators.index(one.generator) for one in ours]
    means = [compute_prompt_means(columns.select(columns.generator == place)) for place in places]
    values = [correlate_means_by_value(of_source, known) for of_source in means]
    ranges = map(_format_range, ([figure.low, figure.high], [one.rho for one in ours], values))
    return figure.figure, figure.metric, figure.other, *ranges, f"{figure.ours}, {figure.release}"


def _format_range(values: Sequence[float]) -> str:
    return f"{format_number(min(values), 2)} to {format_number(max(values), 2)}"


def _make_question_table(counts: QuestionCounts) -> ShownTable:
    ours = counts.compute_statistics()
    return ShownTable(
        "DSG's questions",
        "Tables 2 and 6 of the paper, whose questions Llama 2 wrote about COCO and Winoground, beside the questions "
        "that T2IScoreScore released.",
        ("", "paper, COCO", "paper, Winoground", "T2IScoreScore"),
        [
            ("questions", "63.6k", "1.3k", format_count(ours.questions)),
            ("are of yes and no", "100%", "100%", format_percent(ours.yes_no)),
            ("of those, yes is right", "100%", "100%", format_percent(ours.yes)),
            ("repeat another of their prompt", format_number(None), format_number(None), format_percent(ours.repeated)),
            ("score of random answers", "0.334", "0.360", format_number(ours.chance)),
            ("score of always yes", format_number(None), format_number(None), format_number(ours.majority)),
        ],
    )


if __name__ == "__main__":
    tables = make_published_tables(StorageConfig().locate(os.environ["REFERENCE_DATA"]))
    write_section(StorageConfig().locate(sys.argv[1]), "paper", format_tables_markdown(tables, 3))
