"""The outcomes of a shard's cells, in whichever process they are computed: this one, or a worker of Ray's."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.batches import device_lost, telling_calls
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.rows import error_kinds, joined
from plumbline.operators.base.stopping import STOP, STOPPED
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.logs import about
from plumbline.pipelines.cells.cells import Cell, Outcome, Work
from plumbline.pipelines.cells.reused_rows import read_earlier
from plumbline.pipelines.cells.store import BrokenCell, Store, draft_path
from plumbline.pipelines.running.errors import one_line
from plumbline.pipelines.running.events import ShardFinished
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.running.stopping import Stopping

LOG = logging.getLogger(__name__)
LEVELS = {"committed": logging.INFO, "draft": logging.WARNING, "failed": logging.ERROR}
SHORT_KEY = 8
"""Digits of a cell's key that its file name has."""
CALLS_INTERVAL = 1.0
"""Seconds at least between two reports of answered model calls."""
SAVE_INTERVAL = 300.0
"""Seconds after which the rows of a shard are saved that is still at work: what a process's death costs at most."""
NONE: Mapping[str, Outcome] = MappingProxyType({})


@dataclass(slots=True)
class ModelTime:
    """Seconds of a shard, or of several, and the calls that were answered meanwhile."""

    worked: float = 0.0
    """A node's models worked."""
    waited: float = 0.0
    """They had nothing to work on while its rows were read and decoded."""
    calls: int = 0
    """Calls of models that were answered in this process while the models worked on it."""

    @contextmanager
    def working(self, waiting_since: float | None = None) -> Iterator[None]:
        """Add the body's seconds and calls, and the seconds since the models had nothing to do."""
        began = time.monotonic()
        self.waited += 0.0 if waiting_since is None else began - waiting_since
        with telling_calls(self._add_calls):
            yield
        self.worked += time.monotonic() - began

    def _add_calls(self, made: int) -> None:
        self.calls += made


def save_cell(store: Store, cell: Cell, table: pa.Table, limits: Mapping[str, int]) -> Outcome:
    """Saves a cell. One that cannot be saved fails alone, without the other cells of its shard."""
    try:
        return store.save(cell, table, limits=limits)
    except Exception as error:
        return failed_outcome(error)


class MadeRows:
    """The rows of a shard's cells that have been made; now and then they are saved for whoever begins it again."""

    def __init__(self, cells: Sequence[Cell], context: StageContext, *, seconds: float = SAVE_INTERVAL) -> None:
        self._cells, self._context, self._seconds = cells, context, seconds
        self._made: list[Mapping[str, pa.Table]] = []
        self._saved = time.monotonic()
        self._drafts: Mapping[str, Sequence[pa.Table]] | None = None

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Adds the tables of the next rows, by metric."""
        self._made.append(tables)

    def tables(self) -> dict[str, pa.Table]:
        """All rows, by metric; raises Stopping, after saving them, if some were left out because the process stops."""
        tables = self._joined()
        if STOP.is_set() and any(STOPPED.kind in error_kinds(table) for table in tables.values()):
            self._save_drafts(tables)
            raise Stopping
        return tables

    def keep_safe(self) -> None:
        """Saves the rows as drafts, with those of the drafts that stand there, if the last time is long ago."""
        if self._made and time.monotonic() - self._saved >= self._seconds:
            self._save_drafts(self._joined())

    def _joined(self) -> dict[str, pa.Table]:
        return {cell.metric: joined([made[cell.metric] for made in self._made]) for cell in self._cells}

    def _save_drafts(self, tables: Mapping[str, pa.Table]) -> None:
        store, limits = self._context.store, self._context.limits
        cells = [cell for cell in self._cells if STAGES[cell.stage].keeps_rows]
        with suppress(PlumblineError):  # a store that takes no draft now may take the cell later
            if self._drafts is None:
                self._drafts = {
                    cell.metric: read_earlier(replace(cell, earlier=own_draft(cell)), limits, store.read_cell)
                    for cell in cells
                }
            for cell in cells:
                table = joined([*self._drafts[cell.metric], tables[cell.metric]])
                store.save_draft(cell, table, limits=limits.semantic())
        self._saved = time.monotonic()


def own_draft(cell: Cell) -> tuple[str, ...]:
    """Where rows of the cell itself may stand."""
    return (draft_path(cell.path),) if STAGES[cell.stage].keeps_rows else ()


def compute_cells(
    work: Work,
    cells: Sequence[Cell],
    compute: Callable[[Sequence[Cell]], Mapping[str, pa.Table]],
    context: StageContext,
    committed: Mapping[str, Outcome] = NONE,
) -> dict[str, Outcome]:
    """The outcome of each cell of a shard, by path; a failure of the whole shard fails its cells and nothing else.

    `compute` returns the tables by metric. Cells whose input failed are not computed, nor are the `committed` ones.

    Raises the error of a lost device, which must end the process.
    """
    blocked = {cell.path: failure for cell in cells if (failure := failed_input(cell, work.outcomes))} | dict(committed)
    able = [cell for cell in cells if cell.path not in blocked]
    if not able:
        return blocked
    try:
        tables = compute(able)
    except Exception as error:
        if device_lost(error):
            raise
        return blocked | {cell.path: failed_outcome(error) for cell in able}
    limits = context.limits.semantic()
    return blocked | {cell.path: save_cell(context.store, cell, tables[cell.metric], limits) for cell in able}


def failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """The first failure among a cell's inputs."""
    failures = [outcomes[path] for path in cell.upstream if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def failed_outcome(error: Exception) -> Outcome:
    """The outcome of a cell that failed, with the damaged input that must be computed again, if that is why."""
    LOG.error("%s", one_line(error), exc_info=error)
    broken = (error.path,) if isinstance(error, BrokenCell) else ()
    return Outcome(state="failed", message=one_line(error), broken=broken)


class ShardName(NamedTuple):
    """What tells a shard from all others that are computed with it."""

    benchmark: str
    group: str
    name: str


def shard_name(work: Work) -> ShardName:
    """The name of the shard to be worked on."""
    return ShardName(work.benchmark, work.shard.group, work.shard.name)


def log_context(work: Work, stage: str) -> dict[str, str]:
    """The fields of log lines about a shard; the group of a shard of images is their generator."""
    generator = {"generator": work.shard.group} if STAGES[stage].over == "images" else {}
    return {"benchmark": work.benchmark, **generator, "shard": work.shard.name}


def finished_shard(
    node: str, shard: ShardName, rows: int, outcomes: Collection[Outcome], spent: ModelTime
) -> ShardFinished:
    """The event of a shard of so many rows whose cells came to these outcomes; all rows of a failed cell failed."""
    failed = sum(rows if outcome.state == "failed" else outcome.errors for outcome in outcomes)
    return ShardFinished(
        node, len(outcomes), rows, failed, spent.worked, spent.waited, spent.calls, benchmark=shard.benchmark
    )


def log_cell(cell: Cell, outcome: Outcome) -> None:
    counts = [f"{outcome.rows} rows", *(f"{count} {kind}" for kind, count in outcome.kinds.items())]
    kept = [f"{outcome.kept} kept"] if outcome.kept else []
    said = outcome.message or ", ".join(counts + kept)
    with about(metric=cell.metric, cell=cell.key[:SHORT_KEY]):
        LOG.log(LEVELS[outcome.state], "%s: %s", outcome.state, said)


class CallReporter:
    """Reports answered model calls, at most once per interval."""

    def __init__(self, send: Callable[[int], object], *, seconds: float = CALLS_INTERVAL) -> None:
        self._send, self._seconds = send, seconds
        self._lock = threading.RLock()
        self._unsent = 0
        self._sent = time.monotonic()

    def note(self, made: int) -> None:
        """Counts calls, and reports the unreported ones if the last report is old enough."""
        with self._lock:
            self._unsent += made
            if time.monotonic() - self._sent >= self._seconds:
                self.send()

    def send(self) -> None:
        """Reports the unreported calls; afterwards none is left, whichever thread reported it."""
        with self._lock:
            if made := self.take():
                self._send(made)

    def take(self) -> int:
        """The unreported calls, for the caller to report."""
        with self._lock:
            made, self._unsent, self._sent = self._unsent, 0, time.monotonic()
            return made
