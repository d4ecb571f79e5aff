"""Reads a run's comparisons of two images and makes their section of the report."""

from plumbline.operators.report.choices import make_choices_section
from plumbline.operators.report.page import ReportSection
from plumbline.operators.results.choices import READ_COLUMNS
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.store.store import Store


def read_choices_section(store: Store, run_id: str, skills: Skills) -> ReportSection | None:
    """Return the section about pairwise judges' choices between two images; None if the run has no such choices."""
    path = f"runs/{run_id}/comparisons.parquet"
    return make_choices_section(store.read_table(path, list(READ_COLUMNS)), skills) if store.exists(path) else None
