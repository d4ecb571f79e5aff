"""A section of the report with the tables that GenEval's release prints: accuracy by task, and the mean over tasks."""

from collections.abc import Mapping
from statistics import fmean

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.sentences import ShownTable, format_number
from plumbline.operators.metrics.table import read_metrics
from plumbline.operators.report.page import ReportSection
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.plugins.detected_objects.geneval import GenevalConfig

CAPTION = (
    "The fraction of images that are right, by the prompts' tags. As in the release, “overall” is the mean over tasks, "
    "not over images. People judge newer generators differently: GenEval 2's authors found differences of up to 17.7 "
    "points between GenEval and human ratings (arXiv:2512.16853). This detector is not the release's, so compare these "
    "numbers only with others by the same detector and thresholds."
)


def read_section(store: Store, run_id: str) -> ReportSection | None:
    """Return the section about GenEval's tasks, or None if the run has no such metric or no tasks."""
    metrics = read_metrics(read_manifest(store, run_id))
    summary = store.read_table(f"runs/{run_id}/summary.parquet")
    named = [name for name, metric in metrics.items() if isinstance(metric, GenevalConfig)]
    tables = [table for name in named if (table := make_task_table(summary, name)) is not None]
    return ReportSection("geneval", "GenEval", "GenEval by task", CAPTION, tables) if tables else None


def make_task_table(summary: pa.Table, metric: str) -> ShownTable | None:
    """Return a metric's table of generators and tasks, given the run's means (schema SUMMARY); None without tasks."""
    means: dict[str, dict[str, float | None]] = {}
    for row in summary.filter(pc.field("metric") == metric).to_pylist():
        if row["skill"] != OVERALL:
            means.setdefault(row["generator"], {})[row["skill"]] = row["mean"]
    tasks = list(dict.fromkeys(task for of_generator in means.values() for task in of_generator))
    if not tasks:
        return None
    rows = [
        [
            generator,
            format_number(average_tasks(of_generator)),
            *(format_number(of_generator.get(task)) for task in tasks),
        ]
        for generator, of_generator in means.items()
    ]
    return ShownTable(metric, "", ["", "overall", *tasks], rows)


def average_tasks(means: Mapping[str, float | None]) -> float | None:
    """Return the mean over a generator's tasks, or None if a task has no score."""
    scores = [mean for mean in means.values() if mean is not None]
    return fmean(scores) if scores and len(scores) == len(means) else None
