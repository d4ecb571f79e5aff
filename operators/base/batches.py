"""Calling a model on many rows so that one bad row costs only itself, and counting the calls while they go on."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from plumbline.operators.base.errors import EngineError, HopelessRow, ModelError, RowError
from plumbline.operators.base.stopping import STOP, STOPPED

Row = TypeVar("Row")
Result = TypeVar("Result")
Used = TypeVar("Used", contravariant=True)


class _Calls(threading.local):
    """What a thread has counted."""

    made = 0


_CALLS = _Calls()
_TOLD: list[Callable[[int], None]] = []
"""Who is told of calls in this process."""


@contextmanager
def telling_calls(listener: Callable[[int], None]) -> Iterator[None]:
    """Meanwhile tells a listener how many calls were made, in the threads that make them, as they are answered."""
    _TOLD.append(listener)
    try:
        yield
    finally:
        _TOLD.remove(listener)


def count_calls(made: int) -> None:
    """Counts calls of a model that have been answered: images encoded, questions, replies."""
    _CALLS.made += made
    for listener in dict.fromkeys(tuple(_TOLD)):  # one that was given twice, by shards side by side, is told once
        listener(made)


def counted(call: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row]) -> Sequence[Result]:
    """The call's results, a call for each row, unless what makes the call has counted by itself meanwhile."""
    before = _CALLS.made
    results = call(rows)
    if _CALLS.made == before:
        count_calls(len(rows))
    return results


class BatchSize:
    """How many rows a model takes together: as configured, and fewer once so many were out of memory."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def shrink(self, rows: int, before: int) -> None:
        """Remembers that so many rows were too many.

        One row that is too large by itself says nothing of the others: the size is again as it was `before` that row
        was tried.
        """
        self.rows = min(self.rows, rows // 2) if rows > 1 else before


def isolate(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    size: BatchSize | None = None,
    *,
    crowded: bool = False,
) -> list[Result | RowError]:
    """The call's results, one per row; a failing batch is halved until the failing rows stand alone.

    An out-of-memory batch thus also finds the size that fits, which `size` remembers; where others take memory beside
    these rows (`crowded`), it is raised. A lost device is raised, and a ModelError such as a refused key: no later call
    can succeed. What else the model could not do it may do another time, so these errors are retryable, unless it
    raises HopelessRow. While the process is to stop, no call is made and every row is STOPPED.
    """
    return halve(partial(counted, call), rows, size, crowded=crowded)


def halve(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    size: BatchSize | None = None,
    *,
    crowded: bool = False,
) -> list[Result | RowError]:
    """Return what `isolate` returns, without counting calls: for functions that ask no model."""
    return _halve(call, rows, size, size.rows if size is not None else 0, crowded)


def _halve(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    size: BatchSize | None,
    before: int,
    crowded: bool,
) -> list[Result | RowError]:
    if not rows:
        return []
    if STOP.is_set():
        return [STOPPED] * len(rows)
    try:
        return list(call(rows))
    except Exception as error:
        if device_lost(error) or isinstance(error, ModelError) or (crowded and out_of_memory(error)):
            raise
        if size is not None and out_of_memory(error):
            size.shrink(len(rows), before)
        if len(rows) == 1:
            if isinstance(error, HopelessRow):
                return [error.error]
            return [RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)]
    half = len(rows) // 2  # out here nothing holds on to what the failed call had in memory
    halves = rows[:half], rows[half:]
    return [result for part in halves for result in _halve(call, part, size, before, crowded)]


class UseWindow(Protocol[Used]):
    """What is done with rows that were encoded together."""

    def __call__(self, first: int, encoded: Sequence[Used | RowError], /, *, crowded: bool) -> None:
        """`first` is the place of the first of them among all rows.

        Where they are `crowded`, being out of memory is to be raised, before anything is made of them: fewer of them
        are tried. Else a row that is out of memory is alone, and it is an error of its own.
        """


def in_windows(
    encode: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row], size: BatchSize, use: UseWindow[Result]
) -> None:
    """Has `size` rows encoded together, and used before the next are: what is encoded takes memory until then.

    Where so many are out of memory, encoded or used, half as many go together from then on.
    """
    first = failed = 0
    before = size.rows
    while first < len(rows):
        before = size.rows if first >= failed else before  # any row of a window that failed may be what is too large
        window = rows[first : first + size.rows]
        if not _fits(encode, window, first, use):
            failed = max(failed, first + len(window))
            size.shrink(len(window), before)
            if len(window) > 1:
                continue
            use(first, isolate(encode, window), crowded=False)
        first += len(window)


def _fits(
    encode: Callable[[Sequence[Row]], Sequence[Result]], window: Sequence[Row], first: int, use: UseWindow[Result]
) -> bool:
    """Encodes and uses a window; False where that is out of memory, none of which is held any longer."""
    try:
        use(first, isolate(encode, window, crowded=True), crowded=True)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return False
    return True


def out_of_memory(error: Exception) -> bool:
    """Whether a batch was too large for the memory of the device, or of the machine."""
    text = str(error)
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's, not imported here
    return named or "out of memory" in text or "ALLOC_FAILED" in text


def device_lost(error: Exception) -> bool:
    """Whether the process can no longer use its GPU or its engine, as after an illegal memory access.

    Being out of memory is no such thing.
    """
    if isinstance(error, EngineError):
        return True
    return "CUDA error" in str(error) and not out_of_memory(error)


def in_batches(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    inputs: Sequence[Row],
    sizes: Sequence[Any] | None = None,
    *,
    size: BatchSize,
) -> list[Result]:
    """The call's result for every input, in their order; `size` inputs of like `sizes` go together, all being alike
    where none are given.

    Where so many are out of memory, half as many go together from then on.
    """
    import torch  # the driver counts calls, and has no use for it

    left, before = sorted(range(len(inputs)), key=lambda index: sizes[index] if sizes else 0), size.rows
    failed = len(left)
    results: dict[int, Result] = {}
    with torch.inference_mode():
        while left:
            before = size.rows if len(left) <= failed else before  # as in `in_windows`
            batch = left[: size.rows]
            try:
                results.update(zip(batch, call([inputs[index] for index in batch]), strict=True))
                left = left[len(batch) :]
            except Exception as error:
                if not out_of_memory(error):
                    raise
                failed = min(failed, len(left) - len(batch))
                size.shrink(len(batch), before)
                if len(batch) == 1:
                    raise
    return [results[index] for index in range(len(inputs))]
