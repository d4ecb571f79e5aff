"""What becomes of the cells of a shard, in whichever process they are computed: here, or in a worker of Ray's."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from plumbline.operators.batches import device_lost
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.logs import about
from plumbline.pipelines.cells.cells import Cell, Outcome, Shard, Work
from plumbline.pipelines.cells.store import BrokenCell, Store
from plumbline.pipelines.running.errors import one_line
from plumbline.pipelines.running.events import ShardFinished
from plumbline.pipelines.running.stages import StageContext

LOG = logging.getLogger(__name__)
LEVELS = {"committed": logging.INFO, "draft": logging.WARNING, "failed": logging.ERROR}
SHORT_KEY = 8
"""Digits of a cell's key that its file is named by."""
SECONDS_BETWEEN_NEWS = 1.0
"""At least, of the calls that a process's models have answered."""
NONE: Mapping[str, Outcome] = MappingProxyType({})


def save_cell(store: Store, cell: Cell, table: pa.Table, limits: Mapping[str, int]) -> Outcome:
    """A cell that cannot be saved has failed, and the others of its shard have not."""
    try:
        return store.save(cell, table, limits=limits)
    except Exception as error:
        return failure_of(error)


def compute_cells(
    work: Work,
    cells: Sequence[Cell],
    compute: Callable[[Sequence[Cell]], Mapping[str, pa.Table]],
    context: StageContext,
    standing: Mapping[str, Outcome] = NONE,
) -> dict[str, Outcome]:
    """What became of each cell of a shard, by path; a failure of the whole shard fails its cells and nothing else.

    `compute` gives the tables by metric. Cells whose input failed are not computed, nor are the `standing` ones.

    Raises what ends the process: a lost device.
    """
    blocked = {cell.path: failure for cell in cells if (failure := failed_input(cell, work.outcomes))} | dict(standing)
    able = [cell for cell in cells if cell.path not in blocked]
    if not able:
        return blocked
    try:
        tables = compute(able)
    except Exception as error:
        if device_lost(error):
            raise
        return blocked | {cell.path: failure_of(error) for cell in able}
    limits = context.limits.semantic()
    return blocked | {cell.path: save_cell(context.store, cell, tables[cell.metric], limits) for cell in able}


def failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """The failure of a cell upstream, passed on."""
    failures = [outcomes[path] for path in cell.upstream if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def failure_of(error: Exception) -> Outcome:
    """Of a cell, with the cell upstream that it failed of where that is to be computed anew."""
    LOG.error("%s", one_line(error), exc_info=error)
    broken = (error.path,) if isinstance(error, BrokenCell) else ()
    return Outcome(state="failed", message=one_line(error), broken=broken)


def log_context(shard: Shard, stage: str) -> dict[str, str]:
    """What lines about a shard say of it; the group of a shard of images is their generator."""
    group = {"images": "generator", "prompts": "benchmark"}[STAGES[stage].over]
    return {group: shard.group, "shard": shard.name}


def finished_shard(node: str, rows: int, outcomes: Collection[Outcome]) -> ShardFinished:
    """The event of a shard of so many rows whose cells came to these outcomes; all rows of a failed cell failed."""
    failed = sum(rows if outcome.state == "failed" else outcome.errors for outcome in outcomes)
    return ShardFinished(node, len(outcomes), rows, failed)


def log_cell(cell: Cell, outcome: Outcome) -> None:
    counts = [f"{outcome.rows} rows", *(f"{count} {kind}" for kind, count in outcome.kinds.items())]
    kept = [f"{outcome.kept} kept"] if outcome.kept else []
    said = outcome.message or ", ".join(counts + kept)
    with about(metric=cell.metric, cell=cell.key[:SHORT_KEY]):
        LOG.log(LEVELS[outcome.state], "%s: %s", outcome.state, said)


def shard_name(work: Work) -> str:
    """What a shard is called in progress and messages."""
    return f"{work.shard.group}/{work.shard.name}"


class CallNews:
    """Sends how many calls of models were made, now and then while they are made and not each time."""

    def __init__(self, send: Callable[[int], object], *, seconds: float = SECONDS_BETWEEN_NEWS) -> None:
        self._send, self._seconds = send, seconds
        self._lock = threading.RLock()
        self._unsent = 0
        self._sent = time.monotonic()

    def note(self, made: int) -> None:
        """Counts some, and sends all that are not sent yet where the last time is long enough ago."""
        with self._lock:
            self._unsent += made
            if time.monotonic() - self._sent >= self._seconds:
                self.send()

    def send(self) -> None:
        """Sends those that are not sent yet; after it all are, whichever thread sends them."""
        with self._lock:
            made, self._unsent, self._sent = self._unsent, 0, time.monotonic()
            if made:
                self._send(made)


class Stopwatch:
    """The seconds that its bodies took, all together."""

    seconds = 0.0
    began = 0.0

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self.began
