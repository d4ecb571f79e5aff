"""Finds the newest run of a sweep if nothing has changed since it was written.

There are two ways. `find_unchanged_run_by_listing` needs no plan: it lists the sources and compares the listing with a
note in the run's folder. `find_unchanged_run_by_plan` compares the planned cells, so it also recognizes files that were
touched or copied. The note is written with the run, and again whenever the planned cells show that nothing has changed.
Both functions check the digests of all tables of the run, because damage may leave a file's size and time unchanged. If
a table is damaged, the sweep writes a new run from its cells.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.results.summary import sort_best_first
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.plans.plan import Node, make_metric_recipes, resolve_nodes
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import Outcome, digest
from plumbline.pipelines.store.run_scores import read_failures
from plumbline.pipelines.store.runs import (
    MAX_RUNS_SEARCHED,
    N_READERS,
    Run,
    has_report,
    read_cell_states,
    read_runs_newest_first,
)
from plumbline.pipelines.store.store import Store, StoreError
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs
from plumbline.pipelines.sweeps.results import FinishedSweep, Results
from plumbline.pipelines.sweeps.writing import collect_settings, digest_run_inputs

LOG = logging.getLogger(__name__)
UNCHANGED_FILE = "unchanged.json"
"""File in a run's folder with the digest of the inputs when the run was written or last found unchanged."""


def find_unchanged_run_by_listing(inputs: SweepInputs) -> FinishedSweep | None:
    """Return the newest run of the same benchmark and metrics, if it is complete and its inputs' digest is the same.

    No source is opened and no cell is planned. Folders of scores cells that can be listed in one page are checked: the
    cells must still exist. Cells in larger folders are assumed to exist if the run's own tables are undamaged. Return
    None for adaptive sweeps and for sweeps with `retry_failed` or `verify`, which always need a plan.
    """
    config, store = inputs.config, inputs.store
    if config.adaptive is not None or config.retry_failed or config.verify:
        return None

    def is_same(run: Run) -> bool:
        note = store.read_json(f"runs/{run.run_id}/{UNCHANGED_FILE}") or {}
        if note.get("inputs") != _digest_inputs(config, inputs.digest, resolve_nodes(config, store)):
            return False
        pages = {name: page.written for name in note["folders"] if (page := store.list_first_page(name)).whole}
        if pages:
            cells = read_cell_states(store, run.run_id)
            if not all(path in pages.get(path.rpartition("/")[0].rpartition("/")[0], (path,)) for path in cells):
                return False
        return has_report(store, run.run_id)

    return _find_unchanged_run(config, store, is_same)


def find_unchanged_run_by_plan(planned: PlannedSweep) -> FinishedSweep | None:
    """Return the newest run of the same benchmark and metrics, if no cell is missing and its inputs are the same."""
    if planned.plan.missing or planned.outcomes:
        return None
    expected = digest_run_inputs(planned)

    def is_same(run: Run) -> bool:
        return run.manifest is not None and run.manifest.get("inputs_digest") == expected

    return _find_unchanged_run(planned.config, planned.store, is_same, planned.sources)


def _find_unchanged_run(
    config: SweepConfig, store: Store, is_same: Callable[[Run], bool], sources: Sources | None = None
) -> FinishedSweep | None:
    """Return the newest run of the same benchmark and metrics, if it is undamaged and `is_same` returns True for it.

    If `sources` are given, the run must also be free of errors that might disappear if it were computed again. Runs of
    other benchmarks in the same store are skipped, but a newer run that is damaged is not, because it might belong to
    this benchmark.
    """
    kind = (config.benchmark.name, list(config.metrics))
    for run in islice(read_runs_newest_first(store), MAX_RUNS_SEARCHED):
        if (manifest := run.manifest) is None:
            return None
        if kind != (manifest.get("benchmark"), manifest.get("metrics")):
            continue
        try:
            if not is_same(run):
                return None
            results = _read_results(store, config.lower_is_better, f"runs/{run.run_id}", manifest["counts"])
            if sources is not None and _has_storage_errors(results.failures, sources):
                return None
            ending = Ending(manifest["exit_code"], manifest.get("exit_reason", ""))
        except (PlumblineError, KeyError):  # if the error persists, planning or computing will report it
            return None
        LOG.info("nothing changed since run %s", run.run_id)
        return FinishedSweep(
            run_id=run.run_id,
            folder=f"{store.place.url}/runs/{run.run_id}",
            results=results,
            lower_is_better=config.lower_is_better,
            ending=ending,
            unchanged=True,
        )
    return None


def write_inputs_digest(planned: PlannedSweep, run_id: str) -> None:
    """Write a digest of a complete run's inputs to its folder, for comparison in `find_unchanged_run_by_listing`."""
    if not planned.inputs_digest or planned.config.adaptive is not None:
        return
    nodes = [item.node for item in planned.plan.nodes]
    note = {
        "inputs": _digest_inputs(planned.config, planned.inputs_digest, nodes),
        "folders": sorted({recipes["scores"].folder for recipes in planned.plan.recipes.values()}),
    }
    planned.store.write_json(f"runs/{run_id}/{UNCHANGED_FILE}", note)


def is_complete(planned: PlannedSweep, results: Results, outcomes: Iterable[Outcome]) -> bool:
    """Return True if a run has everything that its sweep can compute, so that repeating the sweep would do nothing."""
    committed = all(outcome.state == "committed" for outcome in outcomes)
    return committed and not planned.plan.untried and not _has_storage_errors(results.failures, planned.sources)


def _digest_inputs(config: SweepConfig, files: str, nodes: Sequence[Node]) -> str:
    """Return a digest of everything that a run depends on; `files` is the digest of the sources."""
    recipes = {name: make_metric_recipes(name, metric, nodes, config.clips) for name, metric in config.metrics.items()}
    computed = {name: {stage: recipe.digest for stage, recipe in chain.items()} for name, chain in recipes.items()}
    return digest({**collect_settings(config), "files": files, "recipes": computed})


def _has_storage_errors(failures: pa.Table, sources: Sources) -> bool:
    """Return True if rows failed because a cell could not be read or written, so that a new run may repair them.

    Retryable errors do not count if they belong to untried cells (`not_computed`), or if they name no file: such images
    do not exist yet, or their file is broken. Errors about broken files do count if the sources no longer have a
    broken file.
    """
    may_pass = failures.filter(
        pc.and_(failures.column("retryable"), pc.not_equal(failures.column("kind"), "not_computed"))
    )
    has_file = pc.is_valid(may_pass.column("file"))
    if not sources.broken:
        has_file = pc.or_(has_file, pc.equal(may_pass.column("kind"), "broken_file"))
    return bool(pc.any(has_file).as_py())


def _read_results(store: Store, lower_is_better: frozenset[str], folder: str, counts: Mapping[str, Any]) -> Results:
    results = Results(
        store=store,
        path=f"{folder}/scores.parquet",
        parts=counts["parts"],
        rows=counts["rows"],
        n_null=counts["rows_null"],
        n_truncated=counts["rows_truncated"],
        summary=sort_best_first(store.read_table(f"{folder}/summary.parquet"), lower_is_better),
        failures=read_failures(store, folder),
    )
    n_failed = pc.sum(results.failures.column("rows")).as_py() or 0
    parts = store.files(results.path)
    if (len(parts), n_failed) != (results.parts, results.n_null):
        raise StoreError(f"{store.place / folder}: a table of the run is incomplete")
    others = [path for path in store.files(folder) if path.endswith(".parquet") and path.count("/") == 2]
    with ThreadPoolExecutor(N_READERS) as pool:
        if not all(pool.map(store.is_undamaged, [*others, *parts])):
            raise StoreError(f"{store.place / folder}: a table of the run is damaged")
    return results
