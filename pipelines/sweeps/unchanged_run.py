"""The newest run of a sweep, if nothing has changed since it was written.

`find_unchanged_by_listing` decides by a listing of the sources, so that a night without changes needs no plan.
`find_unchanged_by_plan` decides by the plan's cells, even if files were touched or copied. The first compares with a
note in the run's folder, which is written with the run, and again when the second finds the run unchanged. Both check
the digests of all of the run's tables, because damage need not change a file's size or time. If a table is damaged, the
sweep writes a new run from its cells.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.results.summary import best_first
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.plans.plan import Node, metric_recipes, resolve_nodes
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import Outcome, digest
from plumbline.pipelines.store.run_scores import read_failures
from plumbline.pipelines.store.runs import MAX_RUNS_SEARCHED, READERS, Run, has_report, newest_first
from plumbline.pipelines.store.store import Store, StoreError
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs
from plumbline.pipelines.sweeps.results import Results
from plumbline.pipelines.sweeps.writing import digest_of_inputs, settings_of

NOTE = "unchanged.json"
"""File in a run's folder: the state of the sources when the run was written or last found unchanged."""


class UnchangedRun(NamedTuple):
    """An undamaged run with the same inputs as a sweep."""

    run_id: str
    results: Results
    ending: Ending


def find_unchanged_by_listing(inputs: SweepInputs) -> UnchangedRun | None:
    """Return the newest run of the same benchmark and metrics, if it computed everything and its inputs look the same.

    No source is opened and no cell is named. That the scores cells still exist is checked if one page lists their
    folder; in larger folders it is assumed, because the run's own tables are undamaged. Returns None for adaptive
    sweeps and those with `retry_failed` or `verify`, which always need a plan.
    """
    config, store = inputs.config, inputs.store
    plain = config.adaptive is None and not config.retry_failed and not config.verify
    newest = _newest_similar_run(store, config) if plain else None
    if newest is None or newest.manifest is None:
        return None
    folder = f"runs/{newest.run_id}"
    try:
        note = store.read_json(f"{folder}/{NOTE}") or {}
        if note.get("inputs") != _state_of_inputs(config, inputs.state, resolve_nodes(config, store)):
            return None
        if not _scores_cells_exist(store, folder, note["folders"]) or not has_report(store, newest.run_id):
            return None
        results = _read_undamaged(store, inputs.falling, folder, newest.manifest["counts"])
        return UnchangedRun(newest.run_id, results, _ending(newest.manifest))
    except (StoreError, KeyError):
        return None


def note_unchanged(planned: PlannedSweep, run_id: str) -> None:
    """Note in a run's folder the state of its inputs, for `find_unchanged_by_listing`; the run must be complete."""
    if not planned.state or planned.config.adaptive is not None:
        return
    store, folder = planned.store, f"runs/{run_id}"
    note = {
        "inputs": _state_of_inputs(planned.config, planned.state, [item.node for item in planned.plan.nodes]),
        "folders": sorted({recipes["scores"].folder for recipes in planned.plan.recipes.values()}),
    }
    store.write_json(f"{folder}/{NOTE}", note)


def is_complete(planned: PlannedSweep, results: Results, outcomes: Iterable[Outcome]) -> bool:
    """Return True if a run has everything that its sweep can compute; the same sweep then has nothing to do."""
    committed = all(outcome.state == "committed" for outcome in outcomes)
    return committed and not planned.plan.untried and not _has_storage_errors(results.failures, planned.sources)


def _state_of_inputs(config: SweepConfig, files: str, nodes: Sequence[Node]) -> str:
    """Return the digest of everything that a run depends on; `files` is the digest of the sources."""
    recipes = {name: metric_recipes(name, metric, nodes, config.clips) for name, metric in config.metrics.items()}
    computed = {name: {stage: recipe.digest for stage, recipe in chain.items()} for name, chain in recipes.items()}
    return digest({**settings_of(config), "files": files, "recipes": computed})


def _scores_cells_exist(store: Store, folder: str, of_scores: Iterable[str]) -> bool:
    """Return True if the scores cells of a run exist, as far as one page of each of their folders shows."""
    pages = {name: page.written for name in of_scores if (page := store.page(name)).whole}
    if not pages:
        return True
    cells = store.read_table(f"{folder}/cells.parquet", ["path"]).column("path").to_pylist()
    return all(path in pages.get(path.rpartition("/")[0].rpartition("/")[0], (path,)) for path in cells)


def find_unchanged_by_plan(planned: PlannedSweep) -> UnchangedRun | None:
    """Return the newest run of the same benchmark and metrics, if nothing is missing and its inputs are the same.

    A damaged run does not count, and neither does a run without a report, whose sweep died before writing it.
    """
    newest = None if planned.plan.missing or planned.outcomes else _newest_similar_run(planned.store, planned.config)
    if newest is None or newest.manifest is None:
        return None
    store, manifest, folder = planned.store, newest.manifest, f"runs/{newest.run_id}"
    try:
        if manifest.get("stands_on") != digest_of_inputs(planned):
            return None
        results = _read_undamaged(store, planned.falling, folder, manifest["counts"])
        ending = _ending(manifest)
    except (PlumblineError, KeyError):
        return None
    if _has_storage_errors(results.failures, planned.sources):
        return None
    return UnchangedRun(newest.run_id, results, ending)


def _ending(manifest: Mapping[str, Any]) -> Ending:
    return Ending(manifest["exit_code"], manifest.get("exit_reason", ""))


def _newest_similar_run(store: Store, config: SweepConfig) -> Run | None:
    """Return the newest run of the same benchmark and metrics (sweeps may share a store), or a newer damaged run."""
    kind = (config.benchmark.name, list(config.metrics))
    for run in islice(newest_first(store), MAX_RUNS_SEARCHED):
        if run.manifest is None or kind == (run.manifest.get("benchmark"), run.manifest.get("metrics")):
            return run
    return None


def _has_storage_errors(failures: pa.Table, sources: Sources) -> bool:
    """Return True if a run has errors that its cells do not have, because a cell could not be read or written then.

    If nothing is missing, all cells but the untried ones are committed, and a committed cell has no retryable error.
    Retryable errors without a file are about images that do not exist yet, or about broken files.
    """
    may_pass = failures.filter(
        pc.and_(failures.column("retryable"), pc.not_equal(failures.column("kind"), "not_computed"))
    )
    of_shards = pc.is_valid(may_pass.column("file"))
    if not sources.broken:
        of_shards = pc.or_(of_shards, pc.equal(may_pass.column("kind"), "broken_file"))
    return bool(pc.any(of_shards).as_py())


def _read_undamaged(store: Store, falling: frozenset[str], folder: str, counts: Mapping[str, Any]) -> Results:
    """Return the tables of a run; raise StoreError if any of its files is damaged."""
    results = Results(
        store=store,
        path=f"{folder}/scores.parquet",
        parts=counts["parts"],
        rows=counts["rows"],
        n_null=counts["rows_null"],
        n_truncated=counts["rows_truncated"],
        summary=best_first(store.read_table(f"{folder}/summary.parquet"), falling),
        failures=read_failures(store, folder),
    )
    n_failed = pc.sum(results.failures.column("rows")).as_py() or 0
    parts = store.files(results.path)
    if (len(parts), n_failed) != (results.parts, results.n_null):
        raise StoreError(f"{store.place / folder}: a table of the run is incomplete")
    others = [path for path in store.files(folder) if path.endswith(".parquet") and path.count("/") == 2]
    with ThreadPoolExecutor(READERS) as pool:
        if not all(pool.map(store.is_sound, [*others, *parts])):
            raise StoreError(f"{store.place / folder}: a table of the run is damaged")
    return results
