"""What nothing in a store refers to any more: found, told with the reason, and removed on request."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import time
from typing import Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.lease import Lease
from plumbline.pipelines.cells.runs import ORDER, Run, list_runs, run_ids, run_of_position
from plumbline.pipelines.cells.store import DRAFT, MARK, Store, StoredFile, StoreError, draft_path, open_existing_store
from plumbline.pipelines.cells.suites import SUITES, newest_suites
from plumbline.pipelines.maintenance.gc_config import GcConfig
from plumbline.pipelines.maintenance.retention import DroppedRun, drop_runs, remove_run
from plumbline.pipelines.maintenance.working_sweeps import SWEEPS, Sign, deleting, signs
from plumbline.pipelines.sources.file_memory import MEMORY

DAY = 24 * 3600.0
DELETE_BATCH = 1000
"""Files that are removed together, in a cloud with few calls."""
UNFINISHED = ("draft", "failed", "missing")
"""States in cells.parquet of cells that a sweep still has to compute."""

Why = Literal[
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


class Free(NamedTuple):
    """A file that may go."""

    stage: str
    """The stage whose cell it is; or runs, tallies, sources, markers, sweeps."""
    file: StoredFile
    why: Why


@dataclass(kw_only=True, slots=True)
class Amount:
    """So many files, and their bytes."""

    files: int = 0
    size: int = 0

    def add(self, file: StoredFile) -> None:
        """Counts a file in."""
        self.files += 1
        self.size += file.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What may go from a store, or is gone."""

    store: str
    free: Mapping[tuple[str, Why], Amount]
    """By stage and reason."""
    runs: tuple[str, ...]
    """The ids of the runs that are not kept."""
    in_use: Mapping[str, str] = field(default_factory=dict)
    """By sweep at work, where it runs; the cells that it may use were not looked at."""
    deleted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """What the runs that are kept refer to."""

    paths: frozenset[str]
    """Of cells, and of the drafts that they read."""
    unfinished: frozenset[tuple[str, str]]
    """Groups and shards on which some cell of theirs is still to be computed."""


def collect_garbage(config: GcConfig) -> Collected:
    """Finds what may go from a store, and with `delete` removes it: runs that are not kept first, then the rest.

    Cells of recipes that a sweep at work uses are left alone; a sweep that begins meanwhile waits until the end. Raises
    ConfigError where the folder is no store, and where a run that is kept cannot tell what it refers to.
    """
    store = open_existing_store(config)
    if not store.exists(MARK):
        raise ConfigError(
            f"store {store.place.url}: it has runs and no {MARK}, so it may be no store; check the address"
        )
    if not config.delete:
        return _collect(config, store, time(), None)
    with deleting(store, "gc") as (lease, now):
        return _collect(config, store, now, lease)


def _collect(config: GcConfig, store: Store, now: float, lease: Lease | None) -> Collected:
    """The lease is there where something is to be deleted; `now` is by the clock of the store.

    The sweeps at work are looked for before the runs are: one that ends in between has left its run.
    """
    working = [sign for sign in signs(store) if sign.alive(now)]
    hold = lease.renew if lease is not None else None
    dropped = drop_runs(store, config.keep_runs, besides={sign.run for sign in working}, hold=hold)
    amounts: defaultdict[tuple[str, Why], Amount] = defaultdict(Amount)
    for run in dropped:
        for file in run.files:
            amounts["runs", "keep_runs does not keep its run"].add(file)
    young = now - config.grace_days * DAY
    for run in _broken_off(store, young, working):
        for file in run.files:
            amounts["runs", "its run has no manifest: the sweep that wrote it died"].add(file)
        if lease is not None:
            remove_run(store, run.run_id)
    found = find_garbage(store, config, young, working, dropped)
    while batch := list(islice(found, DELETE_BATCH)):
        if lease is not None:
            lease.renew()
            store.remove_all([free.file.path for free in batch])
        for free in batch:
            amounts[free.stage, free.why].add(free.file)
    return Collected(
        store=store.place.url,
        free=dict(amounts),
        runs=tuple(run.run_id for run in dropped),
        in_use={sign.run or sign.path: str(sign.content.get("host", "")) for sign in working},
        deleted=lease is not None,
    )


def find_garbage(
    store: Store, config: GcConfig, young: float, working: list[Sign], dropped: list[DroppedRun]
) -> Iterator[Free]:
    """What may go, besides runs: cells first; one recipe's files are held at a time.

    What was written since `young` stays, in seconds since 1970.
    """
    gone = {run.run_id for run in dropped}
    standing = [run for run in list_runs(store) if run.run_id not in gone]
    refers = _references(store, [run.run_id for run in standing])
    for stage in config.stages or tuple(STAGES):
        for folder in (f"{stage}/{recipe}" for recipe in store.folders(stage)):
            if not any(_uses(sign, folder) for sign in working):
                yield from _free_of_recipe(store, folder, refers, young, config.prune)
    for file in store.entries("tallies"):  # of stores that were written before parts held their own
        if file.written < young:
            yield Free("tallies", file, "its run's scores hold what it counted")
    yield from _forgotten(store, standing, young)
    yield from _left_behind(store, young, working)


def _uses(sign: Sign, folder: str) -> bool:
    """Whether a sweep may use the cells of a recipe; one that does not say which it uses may use them all."""
    return folder in sign.content.get("uses", (folder,))


def _references(store: Store, run_ids: list[str]) -> References:
    """Of runs; raises ConfigError for one that cannot tell."""
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
    """The group and the name of the shard of a cell."""
    *_, group, name = path.split("/")
    return group, name.rpartition("-")[0]


def _free_of_recipe(
    store: Store, folder: str, refers: References, young: float, prune: tuple[str, ...]
) -> Iterator[Free]:
    stage = folder.partition("/")[0]
    for file in store.entries(folder):
        why = _why_free(stage, file, refers, young, prune)
        if why is not None:
            yield Free(stage, file, why)


def _why_free(stage: str, file: StoredFile, refers: References, young: float, prune: tuple[str, ...]) -> Why | None:
    """Why a file among a recipe's cells may go; None where it may not."""
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


def _forgotten(store: Store, standing: Iterable[Run], young: float) -> Iterator[Free]:
    """What is remembered of the image files of generators that no run of their benchmark has any more.

    A sweep that would have used it reads those files anew.
    """
    manifests = [run.manifest for run in standing if run.manifest is not None]
    of_runs = {(manifest.get("benchmark"), name) for manifest in manifests for name in manifest.get("generators", ())}
    for file in store.entries(MEMORY):
        names = file.path.removesuffix(".parquet").split("/")
        if file.written < young and (names[1], names[-1]) not in of_runs:
            yield Free(MEMORY, file, "no run that is kept is of these images")


def _left_behind(store: Store, young: float, working: list[Sign]) -> Iterator[Free]:
    """Markers and signs of dead writers, and the places of runs whose folders somebody deleted."""
    runs = {*store.folders("runs")}
    for file in store.entries(ORDER):
        if file.written < young and run_of_position(file.path) not in runs:
            yield Free(ORDER, file, "its run is gone")
    for suite in newest_suites(store):
        files = list(store.entries(suite.folder))
        if not runs & {*suite.runs.values()} and all(file.written < young for file in files):
            yield from (Free(SUITES, file, "its runs are gone") for file in files)
    at_work = {sign.path for sign in working}
    for folder in ("markers", SWEEPS):
        for file in store.entries(folder):
            if file.written < young and file.path not in at_work:
                yield Free(folder, file, "left by a writer that died")


def _broken_off(store: Store, young: float, working: list[Sign]) -> list[DroppedRun]:
    """What stands of runs without a manifest, whose sweeps are not at work."""
    no_runs = set(store.folders("runs")) - {*run_ids(store), *(sign.run for sign in working)}
    left = [DroppedRun(name, tuple(store.entries(f"runs/{name}"))) for name in sorted(no_runs)]
    return [run for run in left if all(file.written < young for file in run.files)]
