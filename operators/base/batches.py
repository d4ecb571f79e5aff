"""Runs model calls on many rows: a bad row fails alone, batches shrink if memory runs out, and calls are counted."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from plumbline.operators.base.errors import EngineError, ModelError, RowError, UnprocessableRowError
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR

Row = TypeVar("Row")
Result = TypeVar("Result")
Used = TypeVar("Used", contravariant=True)


class _CallCounter(threading.local):
    made = 0


_CALL_COUNTER = _CallCounter()
_LISTENERS: list[Callable[[int], None]] = []
"""Functions to call with the number of calls, whenever a model in this process has answered calls."""


@contextmanager
def notify_of_calls(listener: Callable[[int], None]) -> Iterator[None]:
    """Within the context, whenever a model has answered calls, call `listener` with their number.

    The listener runs in the thread that called the model.
    """
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def record_calls(made: int) -> None:
    """Count `made` calls that a model has answered, and tell all listeners about them.

    One call encodes one image, answers one question or writes one reply.
    """
    _CALL_COUNTER.made += made
    for listener in dict.fromkeys(tuple(_LISTENERS)):  # parallel shards may add the same listener twice
        listener(made)


def call_and_count(call: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row]) -> Sequence[Result]:
    """Return `call(rows)`; if `call` counted no calls itself, count one call per row."""
    before = _CALL_COUNTER.made
    results = call(rows)
    if _CALL_COUNTER.made == before:
        record_calls(len(rows))
    return results


class BatchSize:
    """Number of rows in a model's batch: the configured number, reduced whenever a batch runs out of memory."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def shrink(self, rows: int, before: int) -> None:
        """After a batch of `rows` rows has run out of memory, reduce the size to at most half of `rows`.

        If the batch had a single row, reset the size to `before`, its value before that row: other rows may be smaller.
        """
        self.rows = min(self.rows, rows // 2) if rows > 1 else before


def isolate(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    size: BatchSize | None = None,
    *,
    raise_oom: bool = False,
) -> list[Result | RowError]:
    """Return one result per row; split a failing batch in half until each failing row is in a batch of its own.

    Args:
        call: Function that returns one result per row of a batch.
        rows: All rows.
        size: Batch size, which shrinks if a batch runs out of memory.
        raise_oom: True if out-of-memory errors are raised instead of splitting the batch. This is right if memory is
            also taken by rows outside the batch.

    Returns:
        Results in the order of the rows. A failed row gets a retryable RowError, or the error in the
        UnprocessableRowError that the model raised. Once STOP_REQUESTED is set, `call` is not called again, and every
        remaining row gets STOPPED_ERROR.

    Raises:
        Exception: The device is lost, or the model is unusable (ModelError), so no later call can succeed.
    """
    return isolate_without_counting(partial(call_and_count, call), rows, size, raise_oom=raise_oom)


def isolate_without_counting(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    size: BatchSize | None = None,
    *,
    raise_oom: bool = False,
) -> list[Result | RowError]:
    """Do the same as `isolate` without counting calls, for functions that do not call a model."""
    before = size.rows if size is not None else 0
    results: list[Result | RowError] = []
    waiting = [rows] if rows else []
    while waiting:
        batch = waiting.pop()
        if STOP_REQUESTED.is_set():
            results += [STOPPED_ERROR] * len(batch)
            continue
        try:
            results += list(call(batch))
            continue
        except Exception as error:
            if is_device_lost(error) or isinstance(error, ModelError) or (raise_oom and is_out_of_memory(error)):
                raise
            if size is not None and is_out_of_memory(error):
                size.shrink(len(batch), before)
            if len(batch) == 1:
                failure = RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)
                results.append(error.error if isinstance(error, UnprocessableRowError) else failure)
                continue
        half = len(batch) // 2  # outside of `except`, so that the memory of the failed call is free
        waiting += [batch[half:], batch[:half]]
    return results


class UseWindow(Protocol[Used]):
    """Callback to which `encode_in_windows` passes each window: consecutive rows that were encoded together."""

    def __call__(self, first: int, encoded: Sequence[Used | RowError], /, *, raise_oom: bool) -> None:
        """Process the encoded rows; `first` is the index of the window's first row among all rows.

        If `raise_oom` is True, raise an out-of-memory error before storing any result; the rows are then processed
        again in smaller windows. If it is False, the window has a single row, which gets the out-of-memory error.
        """


def encode_in_windows(
    encode: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row], size: BatchSize, use: UseWindow[Result]
) -> None:
    """Encode the rows in windows of `size` rows and pass each window to `use`; windows shrink if memory runs out."""
    first = failed = 0
    before = size.rows
    while first < len(rows):
        before = size.rows if first >= failed else before  # any row of a failed window may be the one that is too large
        window = rows[first : first + size.rows]
        try:
            use(first, isolate(encode, window, raise_oom=True), raise_oom=True)
            fits = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        if not fits:  # outside of `except`, so that the memory of the failed window is free
            failed = max(failed, first + len(window))
            size.shrink(len(window), before)
            if len(window) > 1:
                continue
            use(first, isolate(encode, window), raise_oom=False)
        first += len(window)


def index_distinct(objects: Iterable[Row]) -> tuple[list[Row], list[int]]:
    """Return each object once, in order of first occurrence, and the index in this list for each given object.

    Equal objects that are not identical are different objects here.
    """
    distinct: dict[int, tuple[int, Row]] = {}
    indices = [distinct.setdefault(id(each), (len(distinct), each))[0] for each in objects]
    return [each for _, each in distinct.values()], indices


def call_on_distinct(call: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row]) -> list[Result]:
    """Return the result for each row of a batch; `call` gets an object once, even if it is in several rows."""
    distinct, indices = index_distinct(rows)
    results = call(distinct)
    return [results[index] for index in indices]


def is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    by_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch is not imported here
    return by_type or "out of memory" in text or "ALLOC_FAILED" in text


def is_device_lost(error: Exception) -> bool:
    """Return True if the process can no longer use its GPU or engine. Running out of memory does not count."""
    if isinstance(error, EngineError):
        return True
    if isinstance(error, UnprocessableRowError):  # it may quote such an error of another process
        return False
    return "CUDA error" in str(error) and not is_out_of_memory(error)


def call_in_batches(
    call: Callable[[Sequence[Row]], Sequence[Result]],
    inputs: Sequence[Row],
    sizes: Sequence[Any] | None = None,
    *,
    size: BatchSize,
) -> list[Result]:
    """Return the call's result for every input, in the order of the inputs.

    Each batch has `size` inputs of similar `sizes`, which need little padding. Without `sizes`, all inputs count as
    equally large. If a batch runs out of memory, later batches have half as many inputs.
    """
    import torch  # slow to import, and the driver only counts calls

    left, before = sorted(range(len(inputs)), key=lambda index: sizes[index] if sizes else 0), size.rows
    failed = len(left)
    results: dict[int, Result] = {}
    with torch.inference_mode():
        while left:
            before = size.rows if len(left) <= failed else before  # as in `encode_in_windows`
            batch = left[: size.rows]
            try:
                results.update(zip(batch, call([inputs[index] for index in batch]), strict=True))
                left = left[len(batch) :]
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed = min(failed, len(left) - len(batch))
                size.shrink(len(batch), before)
                if len(batch) == 1:
                    raise
    return [results[index] for index in range(len(inputs))]
