"""Writes a run's tables and manifest into the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import DISTRIBUTION
from plumbline.operators.base.failures import failure_counts
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.generation_settings import COLUMN
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.plans.costs import cost_facts
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import FullSize, Sources
from plumbline.pipelines.store.cells import Outcome, PlannedCell, digest
from plumbline.pipelines.store.reused_rows import count_retried
from plumbline.pipelines.store.run_scores import write_prompt_texts
from plumbline.pipelines.store.runs import CELLS, commit_run
from plumbline.pipelines.sweeps.computing import model_usage
from plumbline.pipelines.sweeps.judge_noise import measure_judge_noise
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import Results

PACKAGES = (DISTRIBUTION, "ray", "torch", "transformers", "pyarrow")
"""Packages whose versions are in the manifest."""
WITHOUT_RESULTS = ("cluster", "models", "log", "retry_failed", "verify")
"""Settings that change no table, only where and how it is computed. Recipes contain what matters of the models."""
CELLS_AT_ONCE = 1 << 15
"""Rows of a run's cells that are Python objects at the same time."""


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
    """Write the tables first, and then the manifest, which commits the run."""
    store, folder = planned.store, f"runs/{run_id}"
    usage = model_usage(planned.plan, outcomes)
    models = [item.node.name for item in planned.plan.nodes if item.node.models]
    worked = {node: planned.times[node].worked for node in models if node in planned.times}
    for name, table in {"summary": results.summary, "usual_scores": results.usual}.items():
        store.write_table(f"{folder}/{name}.parquet", table)
    noise = measure_judge_noise(planned.plan, planned.config.metrics, outcomes, store)
    if len(noise):
        store.write_table(f"{folder}/judge_noise.parquet", noise)
    if planned.seen is not None:
        store.write_table(f"{folder}/decisions.parquet", planned.seen.decisions)
    write_prompt_texts(store, run_id, planned.sources.prompts)
    store.write_table(f"{folder}/cells.parquet", _cell_table(planned.plan, outcomes, results.first_rows))
    manifest = {
        "run_id": run_id,
        "began": began.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": ending.code,
        "exit_reason": ending.reason,
        "stands_on": digest_of_inputs(planned),
        "note": planned.config.note,
        "command": planned.config.command,
        "benchmark": planned.config.benchmark.name,
        "generators": planned.sources.every_generator,
        COLUMN: results.settings,
        "metrics": list(planned.config.metrics),
        "lower_is_better": sorted(planned.falling),
        "counts": count_cells(planned.plan, results, outcomes),
        "errors": dict(failure_counts(results.failures)),
        "calls": {node: planned.times[node].calls for node in models if node in planned.times},
        "seconds": {node: times.seconds for node, times in planned.times.items()},
        "worked": worked,
        "waited": {node: planned.times[node].waited for node in models if node in planned.times},
        "usage": {node: took._asdict() for node, took in usage.items()},
        **cost_facts(planned.plan, usage, planned.config.cluster, planned.held_seconds, worked),
        "versions": _versions(),
        **metric_facts(planned),
    }
    if planned.seen is not None:
        manifest["seen"] = _count_seen(planned)
    if planned.sources.full_size is not None:
        manifest["limited"] = _count_limited(planned.sources, planned.sources.full_size)
    commit_run(store, run_id, manifest, assert_lease)


def metric_facts(planned: PlannedSweep) -> dict[str, Any]:
    """Return the fields of a manifest that `recipe_of` reads to get the recipes of its metrics."""
    return {
        "config": public_config(planned.config),
        "models": {item.node.name: item.node.model.semantic() for item in planned.plan.nodes if item.node.model},
        "stages": {
            name: {stage: STAGES[stage].version for stage in metric.chain}
            for name, metric in planned.config.metrics.items()
        },
    }


def digest_of_inputs(planned: PlannedSweep) -> str:
    """Return a digest of everything that a run's tables depend on: the cells, and facts about the sources."""
    sources = planned.sources
    untried = {"left": sorted(cell.key for cell in planned.plan.untried)} if planned.plan.untried else {}
    return digest(
        untried
        | {
            "cells": sorted(cell.key for cell in planned.plan.cells),
            **settings_of(planned.config),
            "prompts": [shard.prompts for shard in sources.prompt_shards],
            "skills": sha256(sources.skill_labels.tobytes()).hexdigest(),
            "generators": sources.generators,
            "broken": sources.broken,
            **({"rejected": sources.rejected} if sources.rejected else {}),
            "files": sorted({(shard.url, shard.etag) for shard in sources.image_shards if sources.extra.names}),
        }
    )


def settings_of(config: SweepConfig) -> dict[str, Any]:
    """Return the configuration and the package versions that a run's tables may depend on."""
    values = public_config(config)
    return {
        "config": {name: value for name, value in values.items() if name not in WITHOUT_RESULTS},
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def _count_seen(planned: PlannedSweep) -> dict[str, Any]:
    """Return how many prompts and images an adaptive sweep scored and decided, and how many images there are."""
    assert planned.seen is not None and planned.rounds is not None
    images = {
        name: sum(shard.rows for shard in sources.image_shards)
        for name, sources in (("images", planned.sources), ("of_images", planned.rounds.sources))
    }
    return {**planned.seen.counts(), **images}


def _count_limited(sources: Sources, whole: FullSize) -> dict[str, int]:
    """Return how many prompts and images a sweep with a limit takes, and how many the benchmark has."""
    images = sum(shard.rows for shard in sources.image_shards)
    return {
        "prompts": len(sources.prompts), "of_prompts": whole.prompts, "images": images, "of_images": whole.images
    }  # fmt: skip


def count_cells(plan: Plan, results: Results, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return the counts for a run's manifest: its cells, rows and retries."""
    failed = sum(1 for outcome in outcomes.values() if outcome.state == "failed")
    retried = count_retried(plan.failed, outcomes)
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


def _cell_table(plan: Plan, outcomes: Mapping[str, Outcome], first_rows: Mapping[PlannedCell, int]) -> pa.Table:
    """Return the cells of a run (schema CELLS), sorted by path."""
    cells = sorted(plan.cells, key=lambda cell: cell.path)
    runs = (cells[first : first + CELLS_AT_ONCE] for first in range(0, len(cells), CELLS_AT_ONCE))
    return pa.concat_tables([CELLS.empty_table(), *(_cell_rows(run, plan, outcomes, first_rows) for run in runs)])


def _cell_rows(
    cells: Sequence[PlannedCell], plan: Plan, outcomes: Mapping[str, Outcome], first_rows: Mapping[PlannedCell, int]
) -> pa.Table:
    computed = [outcomes.get(cell.path) for cell in cells]
    usages = [outcome.usage if outcome is not None else None for outcome in computed]
    columns: dict[str, list[Any]] = {
        "path": [cell.path for cell in cells],
        "node": [cell.recipe.node for cell in cells],
        "state": [_state(plan, cell, outcome) for cell, outcome in zip(cells, computed, strict=True)],
        "first_row": [first_rows.get(cell) for cell in cells],
    }
    columns |= {name: [getattr(outcome, name, None) for outcome in computed] for name in ("rows", "errors", "message")}
    columns |= {name: [getattr(usage, name, None) for usage in usages] for name in Usage._fields}
    return pa.table(columns, schema=CELLS)


def _state(plan: Plan, cell: PlannedCell, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.state
    return "missing" if cell in plan.missing or cell in plan.untried else "cached"


def public_config(config: SweepConfig) -> dict[str, Any]:
    """Return the configuration without secrets, and without the note and the command, which the manifest has elsewhere.

    Local paths are absolute, so that a later job finds the images from any folder.
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
