"""A model call on many rows returns each row's result or its own error, regardless of the other rows."""

from collections.abc import Callable, Sequence
from weakref import WeakSet

import pytest
import torch

from plumbline.operators.base.batches import (
    BatchSize,
    call_in_batches,
    encode_in_windows,
    is_device_lost,
    isolate,
    notify_of_calls,
    record_calls,
)
from plumbline.operators.base.errors import RowError, UnprocessableRowError


def make_model_failing_on(*bad: int) -> Callable[[Sequence[int]], list[int]]:
    """Return a model that squares its rows, and fails on any batch that contains one of the bad rows."""

    def call(rows: Sequence[int]) -> list[int]:
        for row in rows:
            if row in bad:
                raise ValueError(f"cannot square {row}")
        return [row * row for row in rows]

    return call


@pytest.mark.parametrize("bad", [(0,), (36,), (99,), (0, 99), (10, 11, 12), tuple(range(0, 100, 2))])
def test_bad_rows_fail_alone_and_the_order_is_kept(bad: tuple[int, ...]) -> None:
    results = isolate(make_model_failing_on(*bad), range(100))
    assert [row for row, result in enumerate(results) if isinstance(result, RowError)] == list(bad)
    assert all(result == row * row for row, result in enumerate(results) if row not in bad)


def test_a_batch_without_failure_is_one_call() -> None:
    sizes: list[int] = []

    def call(rows: Sequence[int]) -> Sequence[int]:
        sizes.append(len(rows))
        return rows

    assert isolate(call, range(9)) == list(range(9))
    assert sizes == [9]


def test_no_rows_make_no_call() -> None:
    def call(rows: Sequence[int]) -> list[int]:
        raise AssertionError("called")

    assert isolate(call, []) == []


def test_if_all_rows_fail_each_keeps_its_own_retryable_error() -> None:
    results = isolate(make_model_failing_on(0, 1, 2), range(3))
    assert results == [RowError("model_failed", f"ValueError: cannot square {row}", retryable=True) for row in range(3)]


def test_an_impossible_row_fails_alone_and_is_not_tried_again() -> None:
    hopeless = RowError("prompt_too_long", "shorten it")

    def call(rows: Sequence[int]) -> list[int]:
        if 2 in rows:
            raise UnprocessableRowError(hopeless)
        return list(rows)

    assert isolate(call, range(4)) == [0, 1, hopeless, 3]


@pytest.mark.parametrize("largest", [1, 3, 7])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("Allocation on device"),
        MemoryError(),
    ],
    ids=["torch", "driver", "nameless", "host"],
)
def test_a_batch_too_large_for_memory_is_halved_until_it_fits(largest: int, error: Exception) -> None:
    def call(rows: Sequence[int]) -> list[int]:
        if len(rows) > largest:
            raise error
        return [row + 1 for row in rows]

    assert isolate(call, range(20)) == list(range(1, 21))


def test_a_lost_device_is_raised_at_once() -> None:
    calls: list[int] = []

    def call(rows: Sequence[int]) -> list[int]:
        calls.append(len(rows))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        isolate(call, range(8))
    assert calls == [8]


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", False),
        ("CUDA error: out of memory", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_a_broken_device_counts_as_lost(message: str, lost: bool) -> None:
    assert is_device_lost(RuntimeError(message)) is lost


def test_an_interrupt_does_not_count_as_a_bad_row() -> None:
    def call(rows: Sequence[int]) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolate(call, range(4))


def test_a_batch_size_that_ran_out_of_memory_is_not_tried_again() -> None:
    tried: list[int] = []

    def call(rows: Sequence[int]) -> Sequence[int]:
        tried.append(len(rows))
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return rows

    size = BatchSize(16)
    assert call_in_batches(call, range(40), range(40), size=size) == list(range(40))
    assert tried == [16, 8, 4, *[2] * 20]
    assert isolate(call, range(size.rows), size) == [0, 1]
    assert call_in_batches(call, range(4), range(4), size=size) == list(range(4))
    assert max(tried[4:]) == size.rows == 2


def test_a_row_too_large_for_memory_is_an_error_and_other_failures_do_not_halve_batches() -> None:
    def call(rows: Sequence[int]) -> Sequence[int]:
        if 5 in rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return rows

    size = BatchSize(8)
    results = isolate(call, range(8), size)
    assert [row for row, result in enumerate(results) if isinstance(result, RowError)] == [5]
    assert size.rows == 8, "one image that is too large does not reduce the batch size"
    isolate(make_model_failing_on(3), range(8), size)
    assert size.rows == 8


def test_a_row_too_large_for_memory_does_not_change_the_learnt_batch_size() -> None:
    def call(rows: Sequence[int]) -> Sequence[int]:
        if len(rows) > 4 or 99 in rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return rows

    size = BatchSize(16)
    isolate(call, range(16), size)
    assert size.rows == 4
    isolate(call, [0, 1, 2, 99], size)
    assert size.rows == 4
    with pytest.raises(torch.OutOfMemoryError):
        call_in_batches(call, [0, 1, 2, 99], range(4), size=size)
    assert size.rows == 4
    encode_in_windows(call, [99, *range(20)], size, lambda first, encoded, *, raise_oom: None)
    assert size.rows == 4


class EncodedRow:
    """An encoded row, which occupies device memory as long as it is referenced."""

    def __init__(self, row: int) -> None:
        self.row = row


class FakeDevice:
    """A device with memory for `room` encoded rows; a call on encoded rows needs memory for `using` more rows."""

    def __init__(self, room: int, *, using: int = 0, large: Sequence[int] = ()) -> None:
        """Create a device; a call that includes one of the `large` rows needs all of the device's memory."""
        self.room, self.using, self.large = room, using, large
        self.held: WeakSet[EncodedRow] = WeakSet()
        self.tried: list[int] = []
        self.results: dict[int, int | RowError] = {}

    def encode(self, rows: Sequence[int]) -> list[EncodedRow]:
        self.tried.append(len(rows))
        self.require(len(rows))
        made = [EncodedRow(row) for row in rows]
        self.held.update(made)
        return made

    def require(self, more: int) -> None:
        if len(self.held) + more > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def use(self, first: int, encoded: Sequence[EncodedRow | RowError], *, raise_oom: bool) -> None:
        def read(rows: Sequence[EncodedRow]) -> list[int]:
            self.require(self.room if any(row.row in self.large for row in rows) else self.using)
            return [row.row for row in rows]

        used = isolate(read, [row for row in encoded if isinstance(row, EncodedRow)], raise_oom=raise_oom)
        self.results.update(enumerate(used, first))


@pytest.mark.parametrize(("room", "using"), [(40, 0), (40, 9), (1, 0), (2, 1), (64, 0)])
def test_as_many_rows_are_encoded_together_as_fit_in_memory_during_use(room: int, using: int) -> None:
    device, size = FakeDevice(room, using=using), BatchSize(64)
    encode_in_windows(device.encode, range(100), size, device.use)
    assert device.results == {row: row for row in range(100)}
    fitting = [rows for rows in (64, 32, 16, 8, 4, 2, 1) if rows + using <= room]
    assert size.rows == fitting[0]
    assert device.tried[-1] <= size.rows and not device.held
    again = len(device.tried)
    encode_in_windows(device.encode, range(100), size, device.use)
    assert max(device.tried[again:]) == size.rows, "a size that ran out of memory is not tried again"


def test_a_row_too_large_for_memory_is_an_error_and_does_not_shrink_later_windows() -> None:
    device, size = FakeDevice(8, large=(5,)), BatchSize(4)
    encode_in_windows(device.encode, range(16), size, device.use)
    assert [row for row, result in device.results.items() if isinstance(result, RowError)] == [5]
    assert sorted(device.results) == list(range(16))
    assert size.rows == 4


def test_rows_that_cannot_be_encoded_are_passed_on_as_errors_with_the_others() -> None:
    given: list[object] = []

    def use(first: int, encoded: Sequence[int | RowError], *, raise_oom: bool) -> None:
        given.extend(encoded)

    encode_in_windows(make_model_failing_on(2), range(5), BatchSize(4), use)
    assert given == [0, 1, RowError("model_failed", "ValueError: cannot square 2", retryable=True), 9, 16]


def test_no_more_rows_are_encoded_after_a_lost_device() -> None:
    def encode(rows: Sequence[int]) -> list[int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        encode_in_windows(encode, range(4), BatchSize(2), lambda first, encoded, *, raise_oom: None)


def test_each_call_is_reported_once_when_it_is_answered() -> None:
    told: list[int] = []

    def list_replies(rows: Sequence[int]) -> list[int]:
        for row in rows:
            if row == 3:
                raise ValueError("cannot square 3")
            record_calls(1)
        return list(rows)

    with notify_of_calls(told.append), notify_of_calls(told.append):
        encode_in_windows(make_model_failing_on(2), range(5), BatchSize(4), lambda first, encoded, *, raise_oom: None)
        assert told == [2, 1, 1], "only the rows that did not fail are counted"
        told.clear()
        isolate(lambda rows: isolate(list_replies, rows), range(3))
        assert told == [1, 1, 1], "calls that are counted themselves are not counted again by their caller"
    isolate(make_model_failing_on(), range(3))
    assert told == [1, 1, 1], "there is no listener any more"
