"""Sections of a run's report that plugins add."""

from collections.abc import Callable

from plumbline.operators.base.extensions import Extensions
from plumbline.operators.report.page import ReportSection
from plumbline.pipelines.store.store import Store

SECTIONS = Extensions[Callable[[Store, str], ReportSection | None]]("report_sections", {})
"""Functions of a store and the id of a run; None if there is nothing to show of the run."""


def read_sections(store: Store, run_id: str) -> list[ReportSection]:
    """Return the sections that plugins add to the report of a run, by their names."""
    sections = (SECTIONS[name](store, run_id) for name in sorted(SECTIONS))
    return [section for section in sections if section is not None]
