"""Garbage collection: finds and removes files of a store that no kept run refers to, each with its reason."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import time
from typing import Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.gc_config import GcConfig
from plumbline.pipelines.maintenance.retention import DroppedRun, drop_runs, remove_run
from plumbline.pipelines.maintenance.working_sweeps import SWEEPS, Heartbeat, exclusive_deletion, read_heartbeats
from plumbline.pipelines.sources.file_memory import MEMORY
from plumbline.pipelines.store.lease import Lease
from plumbline.pipelines.store.runs import ORDER, Run, list_runs, run_ids, run_of_position
from plumbline.pipelines.store.store import DRAFT, MARK, Store, StoredFile, StoreError, draft_path, open_existing_store
from plumbline.pipelines.store.suites import SUITES, newest_suites

DAY = 24 * 3600.0
DELETE_BATCH = 1000
"""Files that are removed together, which in a cloud takes few requests."""
UNFINISHED = ("draft", "failed", "missing")
"""States in cells.parquet of cells that a sweep must still compute."""

Reason = Literal[
    "no run that is kept refers to it",
    "its cell is committed, and no run that is kept reads the draft",
    "pruned: the scores that stand on it are there",
    "its run's scores hold what it counted",
    "left by a writer that died",
    "its run is gone",
    "its runs are gone",
    "its run has no manifest: the sweep that wrote it died",
    "keep_runs does not keep its run",
    "no run that is kept is of these images",
]


class GarbageFile(NamedTuple):
    """A file that can be removed."""

    stage: str
    """The stage of a cell; for other files runs, sources, markers or sweeps."""
    file: StoredFile
    reason: Reason


@dataclass(kw_only=True, slots=True)
class Amount:
    """Number and size of files."""

    files: int = 0
    size: int = 0

    def add(self, file: StoredFile) -> None:
        """Add a file."""
        self.files += 1
        self.size += file.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Files and runs of a store that can be removed, or were removed."""

    store: str
    free: Mapping[tuple[str, Reason], Amount]
    """Removable files by stage and reason."""
    runs: tuple[str, ...]
    """The ids of the runs that are not kept."""
    in_use: Mapping[str, str] = field(default_factory=dict)
    """Host of each running sweep; cells that it may use were not examined."""
    deleted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """References of the kept runs."""

    paths: frozenset[str]
    """Paths of cells, and of drafts that the runs read."""
    unfinished: frozenset[tuple[str, str]]
    """Groups and shards for which a kept run still needs some cell to be computed."""


def collect_garbage(config: GcConfig) -> Collected:
    """Find removable files of a store and with `delete` remove them: first runs that are not kept, then other files.

    Cells of recipes that a running sweep uses are not touched; a sweep that starts meanwhile waits until the end. Raise
    ConfigError if the folder is not a store, or if the references of a kept run cannot be read.
    """
    store = open_existing_store(config)
    if not store.exists(MARK):
        raise ConfigError(
            f"store {store.place.url}: it has runs and no {MARK}, so it may be no store; check the address"
        )
    if not config.delete:
        return _collect(config, store, time(), None)
    with exclusive_deletion(store, "gc") as (lease, now):
        return _collect(config, store, now, lease)


def _collect(config: GcConfig, store: Store, now: float, lease: Lease | None) -> Collected:
    """Collect; delete only with a lease. `now` is the time by the store's clock.

    The running sweeps are listed before the runs, because a sweep that ends in between has written its run by then.
    """
    working = [sign for sign in read_heartbeats(store) if sign.alive(now)]
    hold = lease.renew if lease is not None else None
    dropped = drop_runs(store, config.keep_runs, besides={sign.run for sign in working}, hold=hold)
    amounts: defaultdict[tuple[str, Reason], Amount] = defaultdict(Amount)
    for run in dropped:
        for file in run.files:
            amounts["runs", "keep_runs does not keep its run"].add(file)
    young = now - config.grace_days * DAY
    for run in _find_aborted_runs(store, young, working):
        for file in run.files:
            amounts["runs", "its run has no manifest: the sweep that wrote it died"].add(file)
        if lease is not None:
            remove_run(store, run.run_id)
    found = find_garbage(store, config, young, working, dropped)
    while batch := list(islice(found, DELETE_BATCH)):
        if lease is not None:
            lease.renew()
            store.remove_all([garbage.file.path for garbage in batch])
        for garbage in batch:
            amounts[garbage.stage, garbage.reason].add(garbage.file)
    return Collected(
        store=store.place.url,
        free=dict(amounts),
        runs=tuple(run.run_id for run in dropped),
        in_use={sign.run or sign.path: str(sign.content.get("host", "")) for sign in working},
        deleted=lease is not None,
    )


def find_garbage(
    store: Store, config: GcConfig, young: float, working: list[Heartbeat], dropped: list[DroppedRun]
) -> Iterator[GarbageFile]:
    """Yield removable files other than runs, cells first; only one recipe's files are in memory at a time.

    Files that were written after `young` (seconds since 1970) stay.
    """
    gone = {run.run_id for run in dropped}
    kept = [run for run in list_runs(store) if run.run_id not in gone]
    refers = _read_references(store, [run.run_id for run in kept])
    for stage in config.stages or tuple(STAGES):
        for folder in (f"{stage}/{recipe}" for recipe in store.folders(stage)):
            if not any(_uses(sign, folder) for sign in working):
                yield from _find_in_recipe(store, folder, refers, young, config.prune)
    yield from _find_unused_memory(store, kept, young)
    yield from _find_leftovers(store, young, working)


def _uses(sign: Heartbeat, folder: str) -> bool:
    """Return True if a sweep may use the cells of a recipe; without a list of its recipes, it may use all."""
    return folder in sign.content.get("uses", (folder,))


def _read_references(store: Store, run_ids: list[str]) -> References:
    """Return the references of runs; raise ConfigError if those of a run cannot be read."""
    paths: set[str] = set()
    unfinished: set[tuple[str, str]] = set()
    for run_id in run_ids:
        try:
            cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
            states = zip(cells.column("path").to_pylist(), cells.column("state").to_pylist(), strict=True)
        except (StoreError, KeyError) as error:
            raise ConfigError(
                f"{error}; without it nobody knows which cells the run needs: restore it, or delete the folder "
                f"runs/{run_id} and collect again"
            ) from error
        for path, state in states:
            paths.add(path)
            if state in UNFINISHED:
                paths.add(draft_path(path))
                unfinished.add(_shard(path))
    return References(paths=frozenset(paths), unfinished=frozenset(unfinished))


def _shard(path: str) -> tuple[str, str]:
    """Return the group and the name of a cell's shard."""
    *_, group, name = path.split("/")
    return group, name.rpartition("-")[0]


def _find_in_recipe(
    store: Store, folder: str, refers: References, young: float, prune: tuple[str, ...]
) -> Iterator[GarbageFile]:
    stage = folder.partition("/")[0]
    for file in store.entries(folder):
        reason = _find_reason(stage, file, refers, young, prune)
        if reason is not None:
            yield GarbageFile(stage, file, reason)


def _find_reason(
    stage: str, file: StoredFile, refers: References, young: float, prune: tuple[str, ...]
) -> Reason | None:
    """Return the reason why a file among a recipe's cells can be removed; None if it cannot."""
    old = file.written < young
    if file.path.rpartition("/")[2].startswith("."):
        return "left by a writer that died" if old else None
    if not file.path.endswith(".parquet"):
        return None
    if file.path in refers.paths:
        done = _shard(file.path) not in refers.unfinished
        return "pruned: the scores that stand on it are there" if stage in prune and done else None
    if not old:
        return None
    if file.path.endswith(DRAFT) and file.path.removesuffix(DRAFT) + ".parquet" in refers.paths:
        return "its cell is committed, and no run that is kept reads the draft"
    return "no run that is kept refers to it"


def _find_unused_memory(store: Store, kept: Iterable[Run], young: float) -> Iterator[GarbageFile]:
    """Yield remembered digests of image files of generators that no kept run of their benchmark has.

    A later sweep of these images reads the files again.
    """
    manifests = [run.manifest for run in kept if run.manifest is not None]
    of_runs = {(manifest.get("benchmark"), name) for manifest in manifests for name in manifest.get("generators", ())}
    for file in store.entries(MEMORY):
        names = file.path.removesuffix(".parquet").split("/")
        if file.written < young and (names[1], names[-1]) not in of_runs:
            yield GarbageFile(MEMORY, file, "no run that is kept is of these images")


def _find_leftovers(store: Store, young: float, working: list[Heartbeat]) -> Iterator[GarbageFile]:
    """Yield markers and heartbeats of dead writers, and positions and suites of runs whose folders were deleted."""
    runs = {*store.folders("runs")}
    for file in store.entries(ORDER):
        if file.written < young and run_of_position(file.path) not in runs:
            yield GarbageFile(ORDER, file, "its run is gone")
    for suite in newest_suites(store):
        files = list(store.entries(suite.folder))
        if not runs & {*suite.runs.values()} and all(file.written < young for file in files):
            yield from (GarbageFile(SUITES, file, "its runs are gone") for file in files)
    at_work = {sign.path for sign in working}
    for folder in ("markers", SWEEPS):
        for file in store.entries(folder):
            if file.written < young and file.path not in at_work:
                yield GarbageFile(folder, file, "left by a writer that died")


def _find_aborted_runs(store: Store, young: float, working: list[Heartbeat]) -> list[DroppedRun]:
    """Return the remains of runs without a manifest whose sweeps are not running any more."""
    no_runs = set(store.folders("runs")) - {*run_ids(store), *(sign.run for sign in working)}
    left = [DroppedRun(name, tuple(store.entries(f"runs/{name}"))) for name in sorted(no_runs)]
    return [run for run in left if all(file.written < young for file in run.files)]
