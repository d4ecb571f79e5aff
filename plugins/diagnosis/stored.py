"""Stores the diagnosis of a run in the run's folder, and renders it as a section of the run's report."""

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.schemas import CORRELATIONS, floats, longs, texts
from plumbline.operators.report.page import ReportSection
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.operators.results.metric_correlations import Correlation
from plumbline.pipelines.store.store import Store
from plumbline.plugins.diagnosis.ablations import AblationEffect
from plumbline.plugins.diagnosis.diagnosis import Diagnosis, make_tables
from plumbline.plugins.diagnosis.questions import AnswerStatistics, QuestionKind, QuestionStatistics

QUESTION_STATISTICS_SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        *longs("prompts", "questions"),
        *floats("yes_no", "yes", "first", "repeated", "majority", "chance"),
    ]
)
"""Properties of a metric's questions, mostly as fractions (see QuestionStatistics in questions.py)."""

QUESTION_KINDS_SCHEMA = pa.schema(
    [("metric", pa.string()), ("kind", pa.string()), ("questions", pa.int64()), ("share", pa.float64())]
)
"""Number and fraction of a metric's questions by kind."""

ANSWER_STATISTICS_SCHEMA = pa.schema(
    [
        *texts("metric", "denied"),
        ("answers", pa.int64()),
        ("right", pa.float64()),
        ("yes_no", pa.int64()),
        *floats("yes", "wanted"),
        ("choices", pa.int64()),
        ("first", pa.float64()),
    ]
)
"""Fractions of the answers to a metric's questions, with all inputs and with one input withheld (`denied`)."""

ABLATION_EFFECTS_SCHEMA = pa.schema(
    [
        *texts("metric", "denied"),
        *floats("whole", "left", "difference", "low", "high", "rho", "order"),
        *longs("n", "n_null"),
    ]
)
"""Comparison of a metric's scores with all inputs and with one input withheld (`denied`)."""

STORED_TABLES: Mapping[str, tuple[Any, pa.Schema]] = {
    "correlations": (Correlation, CORRELATIONS),
    "questions": (QuestionStatistics, QUESTION_STATISTICS_SCHEMA),
    "kinds": (QuestionKind, QUESTION_KINDS_SCHEMA),
    "answers": (AnswerStatistics, ANSWER_STATISTICS_SCHEMA),
    "effects": (AblationEffect, ABLATION_EFFECTS_SCHEMA),
}
"""Row class and schema of each table, by the name of its field in Diagnosis."""


def write_diagnosis(store: Store, run_id: str, diagnosis: Diagnosis) -> None:
    """Write the tables of a diagnosis as Parquet, followed by diagnosis.md."""
    folder = f"runs/{run_id}/diagnosis"
    for name, (_, schema) in STORED_TABLES.items():
        records = [_replace_nan(record) for record in getattr(diagnosis, name)]
        store.write_table(f"{folder}/{name}.parquet", rows.table(records, schema))
    store.write_text(f"{folder}/diagnosis.md", format_tables_markdown(make_tables(diagnosis)))


def _replace_nan(record: Any) -> dict[str, Any]:
    values = record._asdict().items()
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values}


def read_diagnosis(store: Store, run_id: str) -> Diagnosis | None:
    """Return the diagnosis of a run, or None if the run was not diagnosed."""
    folder = f"runs/{run_id}/diagnosis"
    if not store.exists(f"{folder}/diagnosis.md"):  # this file is written last
        return None

    def read(name: str, kind: Any) -> list[Any]:
        table = store.read_table(f"{folder}/{name}.parquet")
        return [
            kind(**{key: math.nan if value is None else value for key, value in row.items()})
            for row in table.to_pylist()
        ]

    return Diagnosis(**{name: read(name, kind) for name, (kind, _) in STORED_TABLES.items()})


def read_section(store: Store, run_id: str) -> ReportSection | None:
    """Return the diagnosis section of a run's report, or None if the run was not diagnosed."""
    diagnosis = read_diagnosis(store, run_id)
    if diagnosis is None:
        return None
    return ReportSection(
        anchor="metrics",
        link="Metrics",
        title="How good the metrics are",
        caption="These tables describe the metrics, not the generators (“What makes a good metric?”, Ross et al. "
        "2024). They show what the metrics correlate with, which questions they ask, and how they score without one of "
        "their inputs. The files in diagnosis/ next to this page contain every number with its interval.",
        tables=make_tables(diagnosis),
    )
