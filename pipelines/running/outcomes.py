"""Outcomes of the cells of a shard, whether they are computed in the driver or in a Ray worker."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.batches import is_device_lost, notify_of_calls
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.rows import count_error_kinds, join_tables
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.logs import add_log_fields
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running.errors import format_error
from plumbline.pipelines.running.events import ShardFinished
from plumbline.pipelines.running.process import RunStopping
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.store.cells import Cell, Outcome, Work
from plumbline.pipelines.store.reused_rows import read_earlier_tables
from plumbline.pipelines.store.store import BrokenCellError, get_draft_path

LOG = logging.getLogger(__name__)
LOG_LEVEL_BY_STATE = {"committed": logging.INFO, "draft": logging.WARNING, "failed": logging.ERROR}
SHORT_KEY_DIGITS = 8
"""Number of digits of a cell's key that appear in its file name."""
CALLS_INTERVAL = 1.0
"""Minimum number of seconds between two reports of answered model calls."""
SAVE_INTERVAL = 300.0
"""Seconds between saves of a slow shard's finished rows. A process that dies loses at most this much work."""


@dataclass(slots=True)
class ModelTime:
    """Time that models spent on shards, and number of calls that they answered."""

    worked: float = 0.0
    waited: float = 0.0
    """Seconds that the models were idle while rows were read and decoded."""
    calls: int = 0
    """Number of calls that models in this process answered in the time counted by `worked`."""

    @contextmanager
    def measure(self, waiting_since: float | None = None) -> Iterator[None]:
        """Add the context's duration and model calls; the time from `waiting_since` to its start is waiting time."""

        def add_calls(made: int) -> None:
            self.calls += made

        began = time.monotonic()
        self.waited += 0.0 if waiting_since is None else began - waiting_since
        with notify_of_calls(add_calls):
            yield
        self.worked += time.monotonic() - began


class ShardName(NamedTuple):
    """Name of a shard, unique among all shards that are computed together."""

    benchmark: str
    group: str
    name: str


def name_shard(work: Work) -> ShardName:
    return ShardName(work.benchmark, work.shard.group, work.shard.name)


class FinishedShard(NamedTuple):
    """The result of computing a node's cells for one shard."""

    shard: ShardName
    rows: int
    outcomes: Mapping[str, Outcome]
    spent: ModelTime

    def to_event(self, node: str) -> ShardFinished:
        """Return an event for the finished shard; all rows of a failed cell count as failed."""
        return ShardFinished(
            node,
            cells=len(self.outcomes),
            rows=self.rows,
            failed_rows=sum(
                self.rows if outcome.state == "failed" else outcome.errors for outcome in self.outcomes.values()
            ),
            worked=self.spent.worked,
            waited=self.spent.waited,
            calls=self.spent.calls,
            benchmark=self.shard.benchmark,
        )


class ComputedRows:
    """Rows that have been computed for a shard's cells, saved from time to time in case this process dies."""

    def __init__(self, cells: Sequence[Cell], context: StageContext, *, seconds: float = SAVE_INTERVAL) -> None:
        self._cells, self._context, self._seconds = cells, context, seconds
        self._tables: list[Mapping[str, pa.Table]] = []
        self._saved = time.monotonic()
        self._drafts: Mapping[str, Sequence[pa.Table]] | None = None

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables.append(tables)

    def collect_tables(self) -> dict[str, pa.Table]:
        """Return a table of all rows for each metric.

        If the process was stopped before the last row, save the rows and raise RunStopping instead.
        """
        tables = self._join_rows()
        if STOP_REQUESTED.is_set() and any(STOPPED_ERROR.kind in count_error_kinds(table) for table in tables.values()):
            self._save_drafts(tables)
            raise RunStopping
        return tables

    def save_if_due(self) -> None:
        """Save the rows as drafts, merged with existing drafts, if the last save was long enough ago."""
        if self._tables and time.monotonic() - self._saved >= self._seconds:
            self._save_drafts(self._join_rows())

    def _join_rows(self) -> dict[str, pa.Table]:
        return {cell.metric: join_tables([tables[cell.metric] for tables in self._tables]) for cell in self._cells}

    def _save_drafts(self, tables: Mapping[str, pa.Table]) -> None:
        store, limits = self._context.store, self._context.limits
        cells = [cell for cell in self._cells if STAGES[cell.stage].keeps_rows]
        with suppress(PlumblineError):  # a store that refuses a draft now may accept the cell later
            if self._drafts is None:
                self._drafts = {
                    cell.metric: read_earlier_tables(
                        replace(cell, earlier=list_draft_paths(cell)), limits, store.read_cell
                    )
                    for cell in cells
                }
            for cell in cells:
                table = join_tables([*self._drafts[cell.metric], tables[cell.metric]])
                store.save_draft(cell, table, limits=limits.list_key_properties())
        self._saved = time.monotonic()


def list_draft_paths(cell: Cell) -> tuple[str, ...]:
    """Return a tuple with the path of the cell's draft; empty if the cell's stage saves no drafts."""
    return (get_draft_path(cell.path),) if STAGES[cell.stage].keeps_rows else ()


def compute_cells(
    work: Work,
    cells: Sequence[Cell],
    compute: Callable[[Sequence[Cell]], Mapping[str, pa.Table]],
    context: StageContext,
    committed: Mapping[str, Outcome],
) -> dict[str, Outcome]:
    """Compute a shard's cells and return their outcomes by path. After an error, only the cells of this shard fail.

    `compute` returns tables by metric, for cells without a failed input; `committed` contains the outcomes of
    cells that are already committed. If the device is lost, that error is raised and the process must end.
    """
    outcomes = {cell.path: failure for cell in cells if (failure := find_failed_input(cell, work.outcomes))} | dict(
        committed
    )
    cells = [cell for cell in cells if cell.path not in outcomes]
    if not cells:
        return outcomes
    try:
        tables = compute(cells)
    except Exception as error:
        if is_device_lost(error):
            raise
        return outcomes | {cell.path: _make_failed_outcome(error) for cell in cells}
    for cell in cells:
        try:
            outcomes[cell.path] = context.store.save(
                cell, tables[cell.metric], limits=context.limits.list_key_properties()
            )
        except Exception as error:  # the other cells of the shard may be saved
            outcomes[cell.path] = _make_failed_outcome(error)
    return outcomes


def find_failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """Return the outcome of the first failed input of a cell, or None."""
    failures = [outcomes[path] for path in cell.upstream if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def _make_failed_outcome(error: Exception) -> Outcome:
    """Log an error and return a failed outcome; it names the damaged cell, if any, so that the cell is recomputed."""
    LOG.error("%s", format_error(error), exc_info=error)
    broken = (error.path,) if isinstance(error, BrokenCellError) else ()
    return Outcome(state="failed", message=format_error(error), broken=broken)


def make_log_fields(work: Work, stage: str) -> dict[str, str]:
    """Return the log fields that describe a shard; for image shards, the group is the generator."""
    generator = {"generator": work.shard.group} if STAGES[stage].row_kind != "prompts" else {}
    return {"benchmark": work.benchmark, **generator, "shard": work.shard.name}


def finish_shard(node: Node, work: Work, outcomes: Mapping[str, Outcome], spent: ModelTime) -> FinishedShard:
    """Log and return the outcomes of the node's cells in a shard; `outcomes` maps cell paths to outcomes."""
    by_metric: dict[str, Outcome] = {}
    for cell in work.select_cells(node.name):
        by_metric[cell.metric] = outcome = outcomes[cell.path]
        counts = [f"{outcome.rows} rows", *(f"{count} {kind}" for kind, count in outcome.kinds.items())]
        kept = [f"{outcome.kept} kept"] if outcome.kept else []
        with add_log_fields(metric=cell.metric, cell=cell.key[:SHORT_KEY_DIGITS]):
            LOG.log(
                LOG_LEVEL_BY_STATE[outcome.state], "%s: %s", outcome.state, outcome.message or ", ".join(counts + kept)
            )
    return FinishedShard(name_shard(work), work.shard.rows, by_metric, spent if node.models else ModelTime())


class CallReporter:
    """Reports the number of answered model calls, at most once per interval."""

    def __init__(self, send: Callable[[int], object], *, seconds: float = CALLS_INTERVAL) -> None:
        self._send, self._seconds = send, seconds
        self._lock = threading.RLock()
        self._unsent = 0
        self._sent = time.monotonic()

    def add(self, made: int) -> None:
        """Count calls, and send a report if the last one was long enough ago."""
        with self._lock:
            self._unsent += made
            if time.monotonic() - self._sent >= self._seconds:
                self.send()

    def send(self) -> None:
        """Report the unreported calls. On return, all earlier calls have been reported, by this or another thread."""
        with self._lock:
            if made := self.take_unreported_calls():
                self._send(made)

    def take_unreported_calls(self) -> int:
        """Return the number of unreported calls, which the caller must report."""
        with self._lock:
            made, self._unsent, self._sent = self._unsent, 0, time.monotonic()
            return made
