"""Retention: selects the runs of a store to keep, and removes all other runs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.gc_config import RetentionRules
from plumbline.pipelines.maintenance.running_sweeps import hold_exclusive_deletion, read_heartbeats
from plumbline.pipelines.store.runs import Run, list_runs, remove_from_order
from plumbline.pipelines.store.store import Store, StoredFile

PERIOD_KEYS: tuple[tuple[str, Callable[[datetime], tuple[int, ...]]], ...] = (
    ("daily", lambda began: (began.year, began.month, began.day)),
    ("weekly", lambda began: began.isocalendar()[:2]),
    ("monthly", lambda began: (began.year, began.month)),
)


class DroppedRun(NamedTuple):
    """A run that the rules do not keep, with its files."""

    run_id: str
    files: tuple[StoredFile, ...]


AssertLease = Callable[[], object]
"""Function called before each removal of a run; raises LeaseLost if the caller may no longer remove runs."""


def drop_runs(
    store: Store,
    rules: RetentionRules,
    *,
    benchmark: str | None = None,
    also_keep: Collection[str] = (),
    assert_lease: AssertLease | None = None,
) -> list[DroppedRun]:
    """Return the runs that the rules do not keep, oldest first; if `assert_lease` is given, also remove them.

    If a `benchmark` is given, runs of other benchmarks are neither returned nor removed. Runs in `also_keep` are kept.
    `assert_lease` is called before each removal; the caller must have the lease for deletions, as in
    `remove_unkept_runs`.
    """
    runs = list_runs(store)
    kept = select_kept_runs(runs, rules) | set(also_keep)
    dropped = []
    for run in runs:
        if run.run_id not in kept and benchmark in (None, (run.manifest or {}).get("benchmark")):
            dropped.append(DroppedRun(run.run_id, tuple(store.walk_files(f"runs/{run.run_id}"))))
            if assert_lease is not None:
                assert_lease()
                remove_run(store, run.run_id)
    return dropped


def remove_unkept_runs(
    store: Store,
    rules: RetentionRules,
    *,
    job: str,
    benchmark: str,
    also_keep: Collection[str],
    assert_lease: AssertLease,
) -> tuple[str, ...]:
    """Remove a benchmark's runs that the rules do not keep, as `jobs.gc` does; return their ids, oldest first.

    Runs in `also_keep` and the runs of live sweeps are kept. `assert_lease` checks the caller's own lease, in addition
    to the lease for deletions. Raises LeaseHeld if another job is deleting.
    """
    if rules.all or not drop_runs(store, rules, benchmark=benchmark, also_keep=also_keep):
        return ()
    with hold_exclusive_deletion(store, job) as (lease, now):

        def assert_both_leases() -> None:
            assert_lease()
            lease.renew()

        stay = {*also_keep, *(heartbeat.run for heartbeat in read_heartbeats(store) if heartbeat.is_alive(now))}
        dropped = drop_runs(store, rules, benchmark=benchmark, also_keep=stay, assert_lease=assert_both_leases)
    return tuple(run.run_id for run in dropped)


def remove_run(store: Store, run_id: str) -> None:
    """Remove a run, starting with its manifest, so that a partly removed run does not count as a run."""
    store.remove_all([f"runs/{run_id}/manifest.json"])
    remove_from_order(store, run_id)
    store.remove_folder(f"runs/{run_id}")


def select_kept_runs(runs: Sequence[Run], rules: RetentionRules) -> frozenset[str]:
    """Return the ids of the runs to keep; `runs` are all runs, oldest first.

    Raise ConfigError for an unknown run id in `rules.named`.
    """
    known = {run.run_id for run in runs}
    for name in rules.named:
        if name not in known:
            raise ConfigError(f"keep_runs.named: expected runs in the store, got {name!r}; plumbline status lists them")
    if rules.all:
        return frozenset(known)
    kept = set(rules.named)
    by_benchmark: defaultdict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for run in reversed(runs):
        manifest = run.manifest or {}
        try:
            began = datetime.fromisoformat(str(manifest.get("began")))
        except ValueError:  # a damaged run is kept
            kept.add(run.run_id)
            continue
        by_benchmark[str(manifest.get("benchmark"))].append((began, run.run_id))
        if run.latest:
            kept.add(run.run_id)
    for newest_first in by_benchmark.values():
        kept |= {run_id for _, run_id in newest_first[: rules.last]}
        for name, period in PERIOD_KEYS:
            newest: dict[tuple[int, ...], str] = {}
            for began, run_id in newest_first:
                newest.setdefault(period(began), run_id)
            kept |= set(list(newest.values())[: getattr(rules, name)])
    return frozenset(kept)
