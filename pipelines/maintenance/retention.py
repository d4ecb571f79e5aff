"""Retention: selects the runs of a store that stay, and removes the others."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.gc_config import KeepRuns
from plumbline.pipelines.maintenance.working_sweeps import exclusive_deletion, read_heartbeats
from plumbline.pipelines.store.runs import Run, list_runs, remove_from_order
from plumbline.pipelines.store.store import Store, StoredFile

PERIODS: tuple[tuple[str, Callable[[datetime], tuple[int, ...]]], ...] = (
    ("daily", lambda began: (began.year, began.month, began.day)),
    ("weekly", lambda began: began.isocalendar()[:2]),
    ("monthly", lambda began: (began.year, began.month)),
)


class DroppedRun(NamedTuple):
    """A run that is not kept."""

    run_id: str
    files: tuple[StoredFile, ...]


Hold = Callable[[], object]
"""Called before a run is removed; raises LeaseLost if the caller may not remove runs any more."""


def drop_runs(
    store: Store,
    rules: KeepRuns,
    *,
    benchmark: str | None = None,
    besides: Collection[str] = (),
    hold: Hold | None = None,
) -> list[DroppedRun]:
    """Return the runs that the rules do not keep, oldest first; remove each of them if `hold` is given.

    Args:
        store: The store.
        rules: The rules of retention.
        benchmark: Only runs of this benchmark are dropped; None for all benchmarks.
        besides: Runs that stay regardless of the rules.
        hold: Called before each removal. The caller must have the lease of deletions, as `retain` does.
    """
    runs = list_runs(store)
    kept = kept_runs(runs, rules) | set(besides)
    dropped = []
    for run in runs:
        if run.run_id not in kept and benchmark in (None, (run.manifest or {}).get("benchmark")):
            dropped.append(DroppedRun(run.run_id, tuple(store.entries(f"runs/{run.run_id}"))))
            if hold is not None:
                hold()
                remove_run(store, run.run_id)
    return dropped


def retain(
    store: Store, rules: KeepRuns, *, job: str, benchmark: str, besides: Collection[str], hold: Hold
) -> tuple[str, ...]:
    """Remove the runs of a benchmark that the rules do not keep, as `jobs.gc` does; return their ids, oldest first.

    `hold` checks the caller's own lease, in addition to the lease of deletions. Raise LeaseHeld if another job deletes.
    """
    if rules.all or not drop_runs(store, rules, benchmark=benchmark, besides=besides):
        return ()
    with exclusive_deletion(store, job) as (lease, now):

        def hold_both() -> None:
            hold()
            lease.renew()

        stay = {*besides, *(sign.run for sign in read_heartbeats(store) if sign.alive(now))}
        dropped = drop_runs(store, rules, benchmark=benchmark, besides=stay, hold=hold_both)
    return tuple(run.run_id for run in dropped)


def remove_run(store: Store, run_id: str) -> None:
    """Remove a run, its manifest first, so that the remains after an interruption do not count as a run."""
    store.remove_all([f"runs/{run_id}/manifest.json"])
    remove_from_order(store, run_id)
    store.remove_folder(f"runs/{run_id}")


def kept_runs(runs: Sequence[Run], rules: KeepRuns) -> frozenset[str]:
    """Return the ids of the runs that stay; `runs` are all runs, oldest first.

    Raise ConfigError for an unknown name in `rules.named`.
    """
    known = {run.run_id for run in runs}
    for name in rules.named:
        if name not in known:
            raise ConfigError(f"keep_runs.named: no run is called {name!r}; plumbline status lists them")
    if rules.all:
        return frozenset(known)
    kept = {run.run_id for run in runs if run.latest or _began(run) is None} | set(rules.named)
    of_benchmark: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if _began(run) is not None:
            of_benchmark[str((run.manifest or {}).get("benchmark"))].append(run)
    for benchmark_runs in of_benchmark.values():
        newest_first = benchmark_runs[::-1]
        kept |= {run.run_id for run in newest_first[: rules.last]}
        for name, period in PERIODS:
            kept |= _newest_of_each(newest_first, period, getattr(rules, name))
    return frozenset(kept)


def _newest_of_each(runs: Sequence[Run], period: Callable[[datetime], tuple[int, ...]], count: int) -> set[str]:
    """Return the newest run of each of the last `count` periods that have a run; `runs` are newest first."""
    newest: dict[tuple[int, ...], str] = {}
    for run in runs:
        began = _began(run)
        assert began is not None, "the runs have a date"
        newest.setdefault(period(began), run.run_id)
    return set(list(newest.values())[:count])


def _began(run: Run) -> datetime | None:
    """Return the start time in a run's manifest; None if it has none."""
    try:
        return datetime.fromisoformat(str((run.manifest or {}).get("began")))
    except ValueError:
        return None
