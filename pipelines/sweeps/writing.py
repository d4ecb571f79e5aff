"""Writes a run's tables and manifest to the store."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import DISTRIBUTION, PlumblineError, RowError
from plumbline.operators.base.failures import count_rows_by_kind
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.generation_settings import SETTINGS_COLUMN
from plumbline.operators.images.rows import format_id, list_image_records
from plumbline.operators.metrics.metric import Metric, count_repeats
from plumbline.operators.results.judge_noise import measure_noise_by_generator
from plumbline.operators.results.pair_comparisons import list_comparisons
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.plans.costs import describe_costs
from plumbline.pipelines.plans.plan import PAIR_STAGES, Plan
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.pairs import ID_COLUMNS, read_pairs
from plumbline.pipelines.store.cells import Outcome, PlannedCell, digest, is_draft
from plumbline.pipelines.store.reused_rows import NOT_TRIED_ERROR, count_retried_rows
from plumbline.pipelines.store.run_scores import write_text_hashes
from plumbline.pipelines.store.runs import CELLS_SCHEMA, commit_run
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.computing import sum_usage
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import Results

RECORDED_PACKAGES = (DISTRIBUTION, "ray", "torch", "transformers", "pyarrow")
SETTINGS_WITHOUT_EFFECT = ("cluster", "models", "log", "retry_failed", "verify")
"""Settings that do not affect the content of tables. The recipes contain the options of `models` that affect it."""
NOISE_COLUMNS = ("generator", "score", "asks")
MAX_CELLS_IN_MEMORY = 1 << 15
"""Maximum number of rows of a run's cell table that exist as Python objects at the same time."""


def write_run(
    planned: PlannedSweep,
    run_id: str,
    results: Results,
    outcomes: Mapping[str, Outcome],
    *,
    began: datetime,
    ending: Ending,
    assert_lease: Callable[[], None],
) -> None:
    """Write a run's tables, and then its manifest, which commits the run."""
    store, plan = planned.store, planned.plan
    tables = {"summary": results.summary, "usual_scores": results.usual}
    noise = _measure_judge_noise(plan, planned.config.metrics, outcomes, store)
    if len(noise):
        tables["judge_noise"] = noise
    compared = _gather_comparisons(plan, outcomes, store)
    if compared is not None:
        tables["comparisons"] = compared
    if planned.seen is not None:
        tables["decisions"] = planned.seen.decisions
    tables["cells"] = _make_cell_table(plan, outcomes, results.first_rows)
    for name, table in tables.items():
        store.write_table(f"runs/{run_id}/{name}.parquet", table)
    write_text_hashes(store, run_id, planned.sources.prompts)
    manifest = {
        "run_id": run_id,
        "began": began.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": ending.code,
        "exit_reason": ending.reason,
        **_describe_run(planned, results, outcomes),
    }
    commit_run(store, run_id, manifest, assert_lease)


def _describe_run(planned: PlannedSweep, results: Results, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    plan, config, sources = planned.plan, planned.config, planned.sources
    usage = sum_usage(plan, outcomes)
    times = {
        item.node.name: planned.times[item.node.name]
        for item in plan.nodes
        if item.node.models and item.node.name in planned.times
    }
    worked = {node: progress.worked for node, progress in times.items()}
    manifest = {
        "inputs_digest": digest_run_inputs(planned),
        "note": config.note,
        "command": config.command,
        "benchmark": config.benchmark.name,
        "generators": sources.all_generators,
        SETTINGS_COLUMN: results.settings,
        "metrics": list(config.metrics),
        "lower_is_better": sorted(config.lower_is_better),
        "counts": _count_cells(plan, results, outcomes),
        "errors": dict(count_rows_by_kind(results.failures)),
        "calls": {node: progress.calls for node, progress in times.items()},
        "seconds": {node: progress.seconds for node, progress in planned.times.items()},
        "worked": worked,
        "waited": {node: progress.waited for node, progress in times.items()},
        "usage": {node: tokens._asdict() for node, tokens in usage.items()},
        **describe_costs(plan, usage, config.cluster, planned.occupied_seconds, worked),
        "versions": _collect_versions(),
        **describe_metrics(planned),
    }
    images = sum(shard.rows for shard in sources.image_shards)
    if planned.seen is not None and planned.rounds is not None:
        of_images = sum(shard.rows for shard in planned.rounds.sources.image_shards)
        manifest["seen"] = {**planned.seen.collect_counts(), "images": images, "of_images": of_images}
    if (whole := sources.full_size) is not None:  # the benchmark is only scored in part
        manifest["limited"] = {
            "prompts": len(sources.prompts),
            "of_prompts": whole.prompts,
            "images": images,
            "of_images": whole.images,
        }
    return manifest


def _measure_judge_noise(
    plan: Plan, metrics: Mapping[str, Metric], outcomes: Mapping[str, Outcome], store: Store
) -> pa.Table:
    records: list[Mapping[str, Any]] = []
    for name in (name for name in plan.scores if count_repeats(metrics[name]) > 1):
        tables = [schemas.ELEMENT_SCORES.empty_table().select(NOISE_COLUMNS)]
        for cell in plan.scores[name]:
            # the run already has an error for each row of an unreadable cell
            with suppress(OSError, PlumblineError):
                draft = is_draft(cell.path, outcomes)
                tables.append(store.read(cell.path, key=cell.key, draft=draft, columns=NOISE_COLUMNS))
        records += measure_noise_by_generator(name, pa.concat_tables(tables))
    return rows.table(records, schemas.JUDGE_NOISE)


def _gather_comparisons(plan: Plan, outcomes: Mapping[str, Outcome], store: Store) -> pa.Table | None:
    judged = {
        name: recipes[stage] for name, recipes in plan.recipes.items() for stage in PAIR_STAGES if stage in recipes
    }
    tables = [
        list_comparisons(_read_pairs_cell(cell, plan, outcomes, store), name)
        for name, recipe in judged.items()
        for cell in plan.pairs.select(recipe, plan.pairs.of_shard)
    ]
    return pa.concat_tables([schemas.COMPARED_PAIRS.empty_table(), *tables]) if judged else None


def _read_pairs_cell(cell: PlannedCell, plan: Plan, outcomes: Mapping[str, Outcome], store: Store) -> pa.Table:
    """Return the rows of a cell (schema PAIRS); if the cell cannot be used, its rows contain an error instead.

    If the ids cannot be read either, return no rows, because the images themselves are counted as lost.
    """
    outcome = outcomes.get(cell.path)
    if cell in plan.untried:
        error = NOT_TRIED_ERROR
    elif outcome is not None and outcome.state == "failed":
        error = RowError("shard_failed", outcome.message, retryable=True)
    else:
        try:
            return store.read(cell.path, key=cell.key, draft=is_draft(cell.path, outcomes))
        except (OSError, PlumblineError) as problem:
            error = RowError("cell_unreadable", str(problem), retryable=True)
    try:
        pairs = read_pairs(cell.shard, ID_COLUMNS)
    except PlumblineError:
        return schemas.PAIRS.empty_table()
    records = []
    for record in list_image_records(pairs):
        ids = {
            name: format_id(record.get(name)) for name in ("image_id", "prompt_id", "other_image_id", "other_generator")
        }
        records.append({**ids, "generator": cell.shard.group, "error": rows.error_to_dict(error)})
    return rows.table(records, schemas.PAIRS)


def describe_metrics(planned: PlannedSweep) -> dict[str, Any]:
    """Return the manifest fields from which `read_recipe` derives the metrics' recipes."""
    return {
        "config": make_public_config(planned.config),
        "models": {
            item.node.name: item.node.model.list_key_properties() for item in planned.plan.nodes if item.node.model
        },
        "stages": {
            name: {stage: STAGES[stage].version for stage in metric.chain}
            for name, metric in planned.config.metrics.items()
        },
    }


def digest_run_inputs(planned: PlannedSweep) -> str:
    """Return a digest of everything that a run's tables depend on: the cells, the settings and the sources."""
    sources = planned.sources
    untried = {"left": sorted(cell.key for cell in planned.plan.untried)} if planned.plan.untried else {}
    return digest(
        untried
        | {
            "cells": sorted(cell.key for cell in planned.plan.cells),
            **collect_settings(planned.config),
            "prompts": [shard.prompts for shard in sources.prompt_shards],
            "skills": sha256(sources.skill_labels.tobytes()).hexdigest(),
            "generators": sources.generators,
            "broken": sources.broken,
            **({"rejected": sources.rejected} if sources.rejected else {}),
            "files": sorted({(shard.url, shard.etag) for shard in sources.image_shards if sources.extra.names}),
        }
    )


def collect_settings(config: SweepConfig) -> dict[str, Any]:
    """Return the configuration and package versions that may affect a run's tables."""
    values = make_public_config(config)
    return {
        "config": {name: value for name, value in values.items() if name not in SETTINGS_WITHOUT_EFFECT},
        "versions": _collect_versions(),
    }


def _collect_versions() -> dict[str, str]:
    versions = {}
    for package in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):  # Ray is an extra
            versions[package] = version(package)
    return versions


def _count_cells(plan: Plan, results: Results, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    failed = sum(1 for outcome in outcomes.values() if outcome.state == "failed")
    retried = count_retried_rows(plan.failed, outcomes)
    return {
        "cells": len(plan.cells),
        "cells_cached": len(plan.cells) - len(plan.missing) - len(plan.untried),
        "cells_computed": len(outcomes) - failed,
        "cells_failed": failed,
        "cells_renewed": len(plan.renewed),
        "rows_kept": sum(outcome.kept for outcome in outcomes.values()),
        "parts": results.parts,
        "rows": results.rows,
        "rows_null": results.n_null,
        "rows_truncated": results.n_truncated,
        "rows_retried": retried.rows,
        "rows_recovered": retried.succeeded,
        "coverage": results.coverage,
    }


def _make_cell_table(plan: Plan, outcomes: Mapping[str, Outcome], first_rows: Mapping[PlannedCell, int]) -> pa.Table:
    ordered = sorted(plan.cells, key=lambda cell: cell.path)
    tables = [CELLS_SCHEMA.empty_table()]
    for first in range(0, len(ordered), MAX_CELLS_IN_MEMORY):
        cells = ordered[first : first + MAX_CELLS_IN_MEMORY]
        computed = [outcomes.get(cell.path) for cell in cells]
        usages = [outcome.usage if outcome is not None else None for outcome in computed]
        columns: dict[str, list[Any]] = {
            "path": [cell.path for cell in cells],
            "node": [cell.recipe.node for cell in cells],
            "state": [_get_state(plan, cell, outcome) for cell, outcome in zip(cells, computed, strict=True)],
            "first_row": [first_rows.get(cell) for cell in cells],
        }
        for name in ("rows", "errors", "message"):
            columns[name] = [getattr(outcome, name, None) for outcome in computed]
        for name in Usage._fields:
            columns[name] = [getattr(usage, name, None) for usage in usages]
        tables.append(pa.table(columns, schema=CELLS_SCHEMA))
    return pa.concat_tables(tables)


def _get_state(plan: Plan, cell: PlannedCell, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.state
    return "missing" if cell in plan.missing or cell in plan.untried else "cached"


def make_public_config(config: SweepConfig) -> dict[str, Any]:
    """Return the configuration without its secrets, and without the fields that the manifest contains separately.

    Local paths are made absolute, so that a later job can find the images from any folder.
    """
    values = asdict(config)
    benchmark, locate = values["benchmark"], config.storage.locate
    benchmark |= {name: locate(benchmark[name]).url for name in ("prompts", "images", "questions") if benchmark[name]}
    benchmark["uri_roots"] = tuple(locate(url or ".").url for url in benchmark["uri_roots"])
    if isinstance(benchmark["generators"], Mapping):
        benchmark["generators"] = {name: locate(url).url for name, url in benchmark["generators"].items()}
    for name in ("note", "command"):
        del values[name]
    for name in ("key", "secret"):
        values["storage"].pop(name)
    return values
