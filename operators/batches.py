"""Calling a model on many rows so that one bad row costs only itself."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from operators.errors import EngineError, HopelessRow, ModelError, RowError

Row = TypeVar("Row")
Result = TypeVar("Result")


class BatchSize:
    """How many rows a model takes together: as configured, and fewer once so many were out of memory."""

    def __init__(self, rows: int) -> None:
        self.configured = self.rows = rows

    def shrink(self, rows: int) -> None:
        """Remembers that so many rows were too many; a row that is too large by itself says nothing of the others."""
        self.rows = min(self.rows, rows // 2) or self.configured


def isolate(
    call: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row], size: BatchSize | None = None
) -> list[Result | RowError]:
    """The call's results, one per row; a failing batch is halved until the failing rows stand alone.

    An out-of-memory batch thus also finds the size that fits, which `size` remembers. A lost device is raised, and a
    ModelError such as a refused key: no later call can succeed. What else the model could not do it may do another
    time, so these errors are retryable, unless it raises HopelessRow.
    """
    if not rows:
        return []
    try:
        return list(call(rows))
    except Exception as error:
        if device_lost(error) or isinstance(error, ModelError):
            raise
        if size is not None and out_of_memory(error):
            size.shrink(len(rows))
        if len(rows) == 1:
            if isinstance(error, HopelessRow):
                return [error.error]
            return [RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)]
    half = len(rows) // 2  # out here nothing holds on to what the failed call had in memory
    return isolate(call, rows[:half], size) + isolate(call, rows[half:], size)


def out_of_memory(error: Exception) -> bool:
    """Whether a batch was too large for the memory of the device, or of the machine."""
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "ALLOC_FAILED" in text


def device_lost(error: Exception) -> bool:
    """Whether the process can no longer use its GPU or its engine, as after an illegal memory access.

    Being out of memory is no such thing.
    """
    if isinstance(error, EngineError):
        return True
    return "CUDA error" in str(error) and not out_of_memory(error)
