"""The newest run of a sweep, where nothing has changed since it was written."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.errors import PlumblineError
from plumbline.operators.summary import best_first
from plumbline.pipelines.cells.run_errors import read_failures
from plumbline.pipelines.cells.runs import Run, newest_first
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import Results
from plumbline.pipelines.sweeps.writing import digest_of_inputs

MAX_RUNS_SEARCHED = 32
"""How many of the newest runs are searched for one of the same benchmark and metrics."""


class StandingRun(NamedTuple):
    """A run that is whole, with the same inputs as a sweep."""

    run_id: str
    results: Results
    exit_code: int


def find_standing_run(planned: PlannedSweep) -> StandingRun | None:
    """The newest run of the same benchmark and metrics, where nothing is to be computed and its inputs are the same.

    A damaged run does not count, nor one without a report: its sweep died before writing that.
    """
    newest = None if planned.plan.missing or planned.outcomes else _newest_like(planned)
    if newest is None or newest.manifest is None:
        return None
    store, manifest, folder = planned.store, newest.manifest, f"runs/{newest.run_id}"
    try:
        if manifest.get("stands_on") != digest_of_inputs(planned):
            return None
        results = _read_results(planned, folder, manifest["counts"])
        parts = store.files(results.path)
        whole = (len(parts), pc.sum(results.failures.column("rows")).as_py() or 0) == (results.parts, results.n_null)
        if not whole or not all(map(store.is_sound, (f"{folder}/cells.parquet", *parts))):
            return None
        code = manifest["exit_code"]
    except (PlumblineError, KeyError):
        return None
    if _has_storage_errors(results.failures, planned.sources):
        return None
    return StandingRun(newest.run_id, results, code)


def _newest_like(planned: PlannedSweep) -> Run | None:
    """The newest run of the same benchmark and metrics, for sweeps may share a store; or a newer damaged one."""
    kind = (planned.config.benchmark.name, list(planned.config.metrics))
    for run in islice(newest_first(planned.store), MAX_RUNS_SEARCHED):
        if run.manifest is None or kind == (run.manifest.get("benchmark"), run.manifest.get("metrics")):
            return run
    return None


def _has_storage_errors(failures: pa.Table, sources: Sources) -> bool:
    """Whether a run has errors that its cells do not have: a cell could not be read or written then.

    With nothing missing all cells are committed, apart from those that are left out, and a committed cell has no
    retryable error. Retryable errors without a file are about images that nobody has made, or about broken files.
    """
    may_pass = failures.filter(
        pc.and_(failures.column("retryable"), pc.not_equal(failures.column("kind"), "not_computed"))
    )
    of_shards = pc.is_valid(may_pass.column("file"))
    if not sources.broken:
        of_shards = pc.or_(of_shards, pc.equal(may_pass.column("kind"), "broken_file"))
    return bool(pc.any(of_shards).as_py())


def _read_results(planned: PlannedSweep, folder: str, counts: Mapping[str, Any]) -> Results:
    """The tables of a run."""
    store = planned.store
    return Results(
        store=store,
        path=f"{folder}/scores.parquet",
        parts=counts["parts"],
        rows=counts["rows"],
        n_null=counts["rows_null"],
        n_truncated=counts["rows_truncated"],
        summary=best_first(store.read_table(f"{folder}/summary.parquet"), planned.falling),
        failures=read_failures(store, folder),
    )
