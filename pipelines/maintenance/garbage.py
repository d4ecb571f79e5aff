"""Garbage collection: finds and removes files in a store that no kept run refers to, and gives a reason for each."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from time import time
from typing import Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.gc_config import GcConfig
from plumbline.pipelines.maintenance.retention import DroppedRun, drop_runs, remove_run
from plumbline.pipelines.maintenance.running_sweeps import (
    SWEEPS_FOLDER,
    Heartbeat,
    hold_exclusive_deletion,
    read_heartbeats,
)
from plumbline.pipelines.sources.image_file_cache import CACHE_FOLDER
from plumbline.pipelines.store.lease import Lease
from plumbline.pipelines.store.runs import ORDER_FOLDER, Run, list_run_ids, list_runs, parse_run_id
from plumbline.pipelines.store.store import (
    DRAFT_SUFFIX,
    STORE_FILE,
    Store,
    StoredFile,
    StoreError,
    get_draft_path,
    open_existing_store,
)
from plumbline.pipelines.store.suites import SUITES_FOLDER, read_newest_suites

SECONDS_PER_DAY = 24 * 3600.0
FILES_PER_DELETION = 1000
"""Number of files to remove at a time; large batches need few requests in a cloud."""
UNFINISHED_STATES = ("draft", "failed", "missing")
"""States, in cells.parquet, of cells that a sweep has yet to compute."""

RemovalReason = Literal[
    "no kept run refers to it",
    "its cell is committed, and no kept run reads the draft",
    "pruned: the scores computed from it exist",
    "left by a writer that died",
    "its run is gone",
    "its runs are gone",
    "its run has no manifest: the sweep that wrote it died",
    "keep_runs does not keep its run",
    "no kept run has these images",
]


class GarbageFile(NamedTuple):
    """A file that can be removed."""

    stage: str
    """The stage of a cell; for other files, one of runs, sources, markers or sweeps."""
    file: StoredFile
    reason: RemovalReason


@dataclass(kw_only=True, slots=True)
class FileTotals:
    """Number and size of files."""

    files: int = 0
    size: int = 0

    def add(self, file: StoredFile) -> None:
        self.files += 1
        self.size += file.size


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedGarbage:
    """Files and runs in a store that can be removed, or were removed."""

    store: str
    free: Mapping[tuple[str, RemovalReason], FileTotals]
    """Removable files by stage and reason."""
    runs: tuple[str, ...]
    in_use: Mapping[str, str]
    """Host of each running sweep, by the id of its run or else the path of its heartbeat. Cells that these sweeps may
    use were not examined.
    """
    deleted: bool


class References(NamedTuple):
    """Cells and shards that the kept runs refer to."""

    paths: set[str]
    """Paths of cells, and of drafts that the runs read."""
    unfinished: set[tuple[str, str]]
    """Group and name of each shard with cells that have yet to be computed for a kept run."""


def collect_garbage(config: GcConfig) -> CollectedGarbage:
    """Find removable files in a store and, if `delete` is set, remove them: first runs, then other files.

    Cells of recipes that a running sweep uses are left alone, and a sweep that starts in the meantime waits until the
    collection has ended. Raise ConfigError if the folder is not a store, or if the references of a kept run cannot be
    read.
    """
    store = open_existing_store(config)
    if not store.exists(STORE_FILE):
        raise ConfigError(
            f"store {store.place.url}: it has runs but no {STORE_FILE}, so it may not be a store; check the address"
        )
    if not config.delete:
        return _collect_with_lease(config, store, time(), None)
    with hold_exclusive_deletion(store, "gc") as (lease, now):
        return _collect_with_lease(config, store, now, lease)


def _collect_with_lease(config: GcConfig, store: Store, now: float, lease: Lease | None) -> CollectedGarbage:
    """Return the garbage, and delete it only if there is a lease. `now` is the time on the store's clock."""
    # List sweeps before runs: a sweep that ends in between has already written its run.
    sweeps = [heartbeat for heartbeat in read_heartbeats(store) if heartbeat.is_alive(now)]
    sweep_runs = {heartbeat.run for heartbeat in sweeps}
    assert_lease = lease.renew if lease is not None else None
    dropped = drop_runs(store, config.keep_runs, also_keep=sweep_runs, assert_lease=assert_lease)
    amounts: defaultdict[tuple[str, RemovalReason], FileTotals] = defaultdict(FileTotals)
    for run in dropped:
        for file in run.files:
            amounts["runs", "keep_runs does not keep its run"].add(file)
    min_written = now - config.grace_days * SECONDS_PER_DAY
    for run_id in sorted(set(store.list_folders("runs")) - {*list_run_ids(store), *sweep_runs}):
        files = list(store.walk_files(f"runs/{run_id}"))
        if all(file.written < min_written for file in files):
            for file in files:
                amounts["runs", "its run has no manifest: the sweep that wrote it died"].add(file)
            if lease is not None:
                remove_run(store, run_id)
    found = _find_garbage(store, config, min_written, sweeps, dropped)
    while batch := list(islice(found, FILES_PER_DELETION)):
        if lease is not None:
            lease.renew()
            store.remove_all([garbage.file.path for garbage in batch])
        for garbage in batch:
            amounts[garbage.stage, garbage.reason].add(garbage.file)
    return CollectedGarbage(
        store=store.place.url,
        free=dict(amounts),
        runs=tuple(run.run_id for run in dropped),
        in_use={heartbeat.run or heartbeat.path: str(heartbeat.content.get("host", "")) for heartbeat in sweeps},
        deleted=lease is not None,
    )


def _find_garbage(
    store: Store, config: GcConfig, min_written: float, sweeps: list[Heartbeat], dropped: list[DroppedRun]
) -> Iterator[GarbageFile]:
    """Yield removable files other than runs, cells first; only one recipe's files are in memory at a time.

    Files written after `min_written` (seconds since 1970) are kept.
    """
    gone = {run.run_id for run in dropped}
    kept = [run for run in list_runs(store) if run.run_id not in gone]
    references = _read_references(store, [run.run_id for run in kept])
    for stage in config.stages or tuple(STAGES):
        for folder in (f"{stage}/{recipe}" for recipe in store.list_folders(stage)):
            # A sweep whose heartbeat does not list its recipes may use all of them.
            if any(folder in heartbeat.content.get("uses", (folder,)) for heartbeat in sweeps):
                continue
            for file in store.walk_files(folder):
                reason = _find_reason(file, references, min_written, prune=stage in config.prune)
                if reason is not None:
                    yield GarbageFile(stage, file, reason)
    yield from _find_unused_caches(store, kept, min_written)
    yield from _find_leftovers(store, min_written, sweeps)


def _read_references(store: Store, run_ids: list[str]) -> References:
    paths: set[str] = set()
    unfinished: set[tuple[str, str]] = set()
    for run_id in run_ids:
        try:
            cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
            states = zip(cells.column("path").to_pylist(), cells.column("state").to_pylist(), strict=True)
        except (StoreError, KeyError) as error:
            raise ConfigError(
                f"{error}; the table lists the cells that the run needs: restore it, or delete the folder "
                f"runs/{run_id} and collect again"
            ) from error
        for path, state in states:
            paths.add(path)
            if state in UNFINISHED_STATES:
                paths.add(get_draft_path(path))
                unfinished.add(_parse_shard_path(path))
    return References(paths, unfinished)


def _parse_shard_path(path: str) -> tuple[str, str]:
    *_, group, name = path.split("/")
    return group, name.rpartition("-")[0]


def _find_reason(file: StoredFile, references: References, min_written: float, *, prune: bool) -> RemovalReason | None:
    """Return the reason why a file among a recipe's cells can be removed; None if it must be kept."""
    old = file.written < min_written
    if file.path.rpartition("/")[2].startswith("."):
        return "left by a writer that died" if old else None
    if not file.path.endswith(".parquet"):
        return None
    if file.path in references.paths:
        done = _parse_shard_path(file.path) not in references.unfinished
        return "pruned: the scores computed from it exist" if prune and done else None
    if not old:
        return None
    if file.path.endswith(DRAFT_SUFFIX) and file.path.removesuffix(DRAFT_SUFFIX) + ".parquet" in references.paths:
        return "its cell is committed, and no kept run reads the draft"
    return "no kept run refers to it"


def _find_unused_caches(store: Store, kept: Iterable[Run], min_written: float) -> Iterator[GarbageFile]:
    """Yield the image-file caches for generators that are in no kept run of the benchmark.

    If such images are swept again later, their files must be read again.
    """
    manifests = [run.manifest for run in kept if run.manifest is not None]
    of_runs = {(manifest.get("benchmark"), name) for manifest in manifests for name in manifest.get("generators", ())}
    for file in store.walk_files(CACHE_FOLDER):
        names = file.path.removesuffix(".parquet").split("/")
        if file.written < min_written and (names[1], names[-1]) not in of_runs:
            yield GarbageFile(CACHE_FOLDER, file, "no kept run has these images")


def _find_leftovers(store: Store, min_written: float, sweeps: list[Heartbeat]) -> Iterator[GarbageFile]:
    """Yield markers and heartbeats of dead processes, and positions and suites of runs whose folders were deleted."""
    runs = {*store.list_folders("runs")}
    for file in store.walk_files(ORDER_FOLDER):
        if file.written < min_written and parse_run_id(file.path) not in runs:
            yield GarbageFile(ORDER_FOLDER, file, "its run is gone")
    for suite in read_newest_suites(store):
        files = list(store.walk_files(suite.folder))
        if not runs & {*suite.runs.values()} and all(file.written < min_written for file in files):
            yield from (GarbageFile(SUITES_FOLDER, file, "its runs are gone") for file in files)
    running = {heartbeat.path for heartbeat in sweeps}
    for folder in ("markers", SWEEPS_FOLDER):
        for file in store.walk_files(folder):
            if file.written < min_written and file.path not in running:
                yield GarbageFile(folder, file, "left by a writer that died")
