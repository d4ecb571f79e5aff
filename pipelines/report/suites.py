"""Writes a suite's page, which shows the runs of several benchmarks side by side, to the store."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy, read_all_settings
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.rendering import format_suite_csv, format_suite_markdown, render_suite
from plumbline.operators.report.suite import SuitePage, SuiteRun, build_suite
from plumbline.operators.results.comparison import compare_generators, read_prompt_means
from plumbline.operators.results.metric_recipes import list_unranked_metrics
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.store.run_scores import read_run_scores
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import Suite


def write_suite(
    store: Store,
    suite_id: str,
    runs: Mapping[str, str],
    *,
    exit_code: int,
    settings: SettingsPolicy = COMPARE,
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> tuple[Suite, SuitePage]:
    """Write a suite's page, summary.csv, summary.md and finally suite.json; return the suite and its page.

    `runs` contains the run id of each benchmark. Raises PlumblineError if a run cannot be read.
    """
    page = build_suite(
        suite_id, [_read_suite_run(store, run_id, settings) for run_id in runs.values()], left_out=left_out, notes=notes
    )
    suite = Suite(suite_id, dict(runs), exit_code)
    for name, text in (
        ("report.html", render_suite(page)),
        ("summary.csv", format_suite_csv(page)),
        ("summary.md", format_suite_markdown(page)),
    ):
        store.write_text(f"{suite.folder}/{name}", text)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"suite_id": suite_id, "ended": ended, "exit_code": exit_code, "runs": dict(runs)}
    store.write_json(f"{suite.folder}/suite.json", content)
    return suite, page


def _read_suite_run(store: Store, run_id: str, choice: SettingsPolicy) -> SuiteRun:
    manifest, scores = read_manifest(store, run_id), read_run_scores(store, run_id)
    lower_is_better, unranked = read_lower_is_better(manifest), list_unranked_metrics(manifest)
    settings = read_all_settings(manifest, choice)
    duels = []
    for name in scores.metrics:
        if name not in unranked:
            means = read_prompt_means(scores, name)
            duels += compare_generators(name, means, Skills(()), lower_is_better, settings=settings)
    return SuiteRun(run_id, manifest, store.read_table(f"runs/{run_id}/summary.parquet"), duels)
