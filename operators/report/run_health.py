"""Describes the health of a run: coverage, failures, truncated prompts, models, settings, versions and costs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plumbline.operators.base.errors import REMEDIES_BY_KIND
from plumbline.operators.base.failures import describe_row_ids, iterate_failure_kinds
from plumbline.operators.base.sentences import (
    MAX_LISTED_NAMES,
    FirstRows,
    Sentence,
    format_names,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.report.findings import Boards
from plumbline.operators.report.marked_words import shorten
from plumbline.operators.report.metric_figures import NO_UNSCORED_PROMPTS, UnscoredPrompts
from plumbline.operators.results.run_scores import Hashes, RunScores

MAX_ERROR_KINDS = 30
CELL_DESCRIPTIONS = {
    "cells_computed": "computed",
    "cells_cached": "found in the store from earlier runs",
    "cells_renewed": "of them recomputed, because they were damaged or outdated",
    "cells_failed": "failed",
}
"""Descriptions of the manifest's cell counts."""

NamedTexts = Mapping[str, str]


class Failure(NamedTuple):
    """A kind of failure with its number of failed rows, and one of them as an example."""

    kind: str
    rows: int
    share: float
    """Failed rows of this kind as a fraction of all rows."""
    example: str
    """Generator and metric of the example row, and its image or prompt."""
    message: str
    remedy: str


class CoverageGap(NamedTuple):
    """A generator and metric with missing scores, and how many are missing."""

    generator: str
    metric: str
    n_null: int
    """Number of rows without a score, not counting prompts that fail for every generator."""
    coverage: float
    """Fraction of the generator's rows that have a score."""


class StageCost(NamedTuple):
    """Usage of a stage's model in this run; None for values that are not in the manifest."""

    stage: str
    calls: int | None
    tokens_read: int | None
    tokens_written: int | None
    seconds: int | None
    waited: float | None
    """Fraction of the models' time spent waiting for rows to be read and decoded."""


class RunHealth(NamedTuple):
    """Content of the report's section on the quality of a run: coverage, failures, noise, models and costs."""

    rows: int
    rows_null: int
    unscored: list[Sentence]
    """Sentences about the prompts that fail for every generator."""
    uneven: FirstRows[CoverageGap]
    """Gaps that are not due to prompts that fail for every generator, lowest coverage first."""
    failures: FirstRows[Failure]
    truncated: list[tuple[str, int]]
    """Metrics, each with the number of rows that were scored on a truncated prompt."""
    noise: FirstRows[Mapping[str, Any]]
    """Noise of judges that answered several times about each image (schema JUDGE_NOISE), noisiest first."""
    models: dict[str, NamedTexts]
    conventions: dict[str, NamedTexts]
    facts: NamedTexts
    costs: list[StageCost]
    metric_costs: Mapping[str, Mapping[str, Any]]
    """Seconds and costs by metric, as recorded in the manifest."""
    cost_note: str

    @property
    def coverage(self) -> float:
        """Fraction of rows that have a score."""
        return 1 - self.rows_null / self.rows if self.rows else 1.0


def build_health(
    manifest: Mapping[str, Any],
    scores: RunScores,
    failures: pa.Table,
    overall: Boards,
    noise: pa.Table,
    unscored: Mapping[str, UnscoredPrompts],
) -> RunHealth:
    """Return the health of a run, based on its manifest and tables.

    `unscored` maps each metric of the run to the prompts that fail for every generator.
    """
    metrics = _read_mapping(manifest, "config", "metrics")
    gaps = []
    for board in overall.values():
        everywhere = unscored.get(board.metric, NO_UNSCORED_PROMPTS).by_generator
        for row in board.rows:
            if n_null := row.n_null - everywhere.get(row.generator, 0):
                gaps.append(CoverageGap(row.generator, board.metric, n_null, row.coverage))
    return RunHealth(
        rows=len(scores),
        rows_null=scores.n_null,
        unscored=_describe_unscored(unscored, scores),
        uneven=take_first_rows(sorted(gaps, key=lambda gap: gap.coverage), MAX_ERROR_KINDS),
        failures=_list_failures(failures, len(scores)),
        truncated=list(scores.truncated.items()),
        noise=take_first_rows(sorted(noise.to_pylist(), key=lambda row: -(row["share"] or 0)), MAX_ERROR_KINDS),
        models={stage: _describe_model(stage, manifest) for stage in _read_mapping(manifest, "models")},
        conventions={
            name: {key: _format_value(value) for key, value in options.items()} for name, options in metrics.items()
        },
        facts=_list_facts(manifest),
        costs=_list_costs(manifest),
        metric_costs=_read_mapping(manifest, "by_metric"),
        cost_note=describe_run_cost(manifest),
    )


def _describe_unscored(unscored: Mapping[str, UnscoredPrompts], scores: RunScores) -> list[Sentence]:
    """Return sentences on prompts that no metric scored, and on further prompts that a single metric did not score."""
    if not unscored:
        return []
    common = reduce(np.intersect1d, [of_metric.prompts for of_metric in unscored.values()])
    by_any = f"by {next(iter(unscored))}" if len(unscored) == 1 else "by any metric"
    groups: list[tuple[str, Hashes, list[UnscoredPrompts]]] = [(by_any, common, list(unscored.values()))]
    for metric, of_metric in unscored.items():
        groups.append((f"by {metric}", np.setdiff1d(of_metric.prompts, common), [of_metric]))
    sentences = []
    for by, prompts, of_metrics in groups:
        if not len(prompts):
            continue
        n_rows = sum(int(own.n_rows[np.isin(own.prompts, prompts)].sum()) for own in of_metrics)
        rows = np.sort(of_metrics[0].row[np.isin(of_metrics[0].prompts, prompts)])[: MAX_LISTED_NAMES + 1]
        ids = [str(row.prompt_id) for row in scores.read_ids(rows.tolist())]
        have = "has" if len(prompts) == 1 else "have"
        lead = f"{format_quantity(len(prompts), 'prompt')} {have} no score {by} for any generator:"
        not_read = [""] * (len(prompts) - len(ids))  # the ids of prompts that are only counted are not looked up
        sentences.append(Sentence(lead, f"{format_names([*ids, *not_read])} ({format_quantity(n_rows, 'row')})."))
    return sentences


def describe_failures(failures: FirstRows[Failure]) -> str:
    """Return text on why rows have no score: the kinds of failure, and an example of the most frequent kind."""
    if not failures.rows:
        return ""
    kinds = ", ".join(f"{failure.rows:,} {failure.kind}" for failure in failures.rows)
    more = f" and {format_quantity(failures.left_out, 'more kind')}" if failures.left_out else ""
    first = failures.rows[0]
    return f"{kinds}{more}. For instance {first.example}: {first.message}"


def _list_failures(failures: pa.Table, rows: int) -> FirstRows[Failure]:
    kinds = [
        Failure(
            kind=row["kind"],
            rows=row["rows"],
            share=row["rows"] / rows if rows else 0.0,
            example=shorten(describe_row_ids(row, "generator", "metric"), 200),
            message=shorten(row["message"]),
            remedy=REMEDIES_BY_KIND.get(row["kind"], "act on the message"),
        )
        for row in iterate_failure_kinds(failures)
    ]
    return take_first_rows(sorted(kinds, key=lambda kind: -kind.rows), MAX_ERROR_KINDS)


def _read_mapping(manifest: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _describe_model(stage: str, manifest: Mapping[str, Any]) -> NamedTexts:
    config = _read_mapping(manifest, "config", "models", *stage.split(":")[1:2])
    named = {name: str(config[name]) for name in ("checkpoint", "revision", "engine") if config.get(name)}
    model = manifest["models"][stage]
    for name, value in (model if isinstance(model, Mapping) else {"model": model}).items():
        if isinstance(value, Mapping):
            named |= {f"{file} content": _format_value(digest) for file, digest in value.items() if digest}
        elif value is not None:
            named[name] = _format_value(value)
    return named


def _format_value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return shorten(", ".join(f"{key}={_format_value(inner)}" for key, inner in value.items())) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shorten(", ".join(map(_format_value, value))) or "–"
    return shorten(str(value))


def _list_facts(manifest: Mapping[str, Any]) -> NamedTexts:
    benchmark, versions = _read_mapping(manifest, "config", "benchmark"), _read_mapping(manifest, "versions")
    facts = {name: str(manifest[name]) for name in ("began", "ended") if manifest.get(name)}
    facts |= {name: _format_value(benchmark.get(name)) for name in ("prompts", "images") if benchmark.get(name)}
    return facts | {package: str(version) for package, version in versions.items()}


def _list_costs(manifest: Mapping[str, Any]) -> list[StageCost]:
    usage, seconds, calls, worked, waited = (
        _read_mapping(manifest, name) for name in ("usage", "seconds", "calls", "worked", "waited")
    )
    costs = []
    for stage in dict.fromkeys([*usage, *seconds]):
        used = {"calls": calls.get(stage), **(usage.get(stage) or {})}
        model_time = worked.get(stage, 0) + waited.get(stage, 0)
        costs.append(
            StageCost(
                stage=stage,
                calls=used["calls"],
                tokens_read=used.get("prompt_tokens"),
                tokens_written=used.get("new_tokens"),
                seconds=round(seconds[stage]) if stage in seconds else None,
                waited=waited[stage] / model_time if model_time else None,
            )
        )
    return costs


def describe_run_cost(manifest: Mapping[str, Any]) -> str:
    """Return sentences about the run's duration and cost, and about results that were already in the store."""
    counts = _read_mapping(manifest, "counts")
    words = []
    try:
        took = datetime.fromisoformat(manifest["ended"]) - datetime.fromisoformat(manifest["began"])
    except (KeyError, TypeError, ValueError):  # missing from the manifest, or not a valid time
        pass
    else:
        words.append(f"The run took {_format_duration(took.total_seconds())}.")
    if parts := [f"{counts[key]:,} {verb}" for key, verb in CELL_DESCRIPTIONS.items() if counts.get(key)]:
        words.append(f"Of its {counts.get('cells', 0):,} pieces of work: {', '.join(parts)}.")
    amounts: dict[str, float] = defaultdict(float)
    for cost in _read_mapping(manifest, "costs").values():
        amounts[cost["currency"]] += cost["amount"]
    if amounts:
        payees = "GPUs and services" if _read_mapping(manifest, "gpu_seconds") else "Services"
        words.append(f"{payees} cost {' and '.join(f'{amount:.2f} {name}' for name, amount in amounts.items())}.")
    return " ".join(words)


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} seconds"
    return f"{whole // 60} minutes" if whole < 7200 else f"{whole / 3600:.1f} hours"
