"""Calling a model on many rows so that one bad row costs only itself."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from operators.errors import EngineError, HopelessRow, RowError

Row = TypeVar("Row")
Result = TypeVar("Result")


def isolate(call: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row]) -> list[Result | RowError]:
    """The call's results, one per row; a failing batch is halved until the failing rows stand alone.

    An out-of-memory batch thus also finds the size that fits. A lost device is raised: no later call can succeed.
    What the model could not do it may do another time, so these errors are retryable, unless it raises HopelessRow.
    """
    if not rows:
        return []
    try:
        return list(call(rows))
    except Exception as error:
        if device_lost(error):
            raise
        if len(rows) == 1:
            if isinstance(error, HopelessRow):
                return [error.error]
            return [RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)]
        half = len(rows) // 2
        return isolate(call, rows[:half]) + isolate(call, rows[half:])


def device_lost(error: Exception) -> bool:
    """Whether the process can no longer use its GPU or its engine, as after an illegal memory access.

    Being out of memory is no such thing.
    """
    if isinstance(error, EngineError):
        return True
    text = str(error)
    return "CUDA error" in text and "out of memory" not in text and "ALLOC_FAILED" not in text
