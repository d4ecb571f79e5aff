"""Measures each model in a separate process, so that all its memory is free for the next model."""

import multiprocessing
import tempfile
import traceback
from pathlib import Path
from typing import Any, Protocol

from tests.benchmarks.gpu.rows import MeasuredModel, WorkAmounts

PROCESS_CONTEXT = multiprocessing.get_context("spawn")
"""Start method for processes; a forked process could not use CUDA once an import has looked for a device."""


def measure_in_process(
    name: str, shapes: str | None, amounts: WorkAmounts, server: Any, seconds: float
) -> MeasuredModel:
    """Measure a model in a separate process; if that fails or takes too long, return a row with the reason."""
    results, its_end = PROCESS_CONTEXT.Pipe(duplex=False)
    process = PROCESS_CONTEXT.Process(target=measure_and_send, args=(its_end, name, shapes, amounts, server))
    process.start()
    its_end.close()
    try:
        if results.poll(max(seconds, 0)):
            row: MeasuredModel = results.recv()
        else:
            process.kill()
            row = MeasuredModel(model=name, shapes=shapes or "", error="the time was up; give it more by --minutes")
    except EOFError:
        process.join()
        ended = f"its process ended with {process.exitcode}; -9 is often too little memory on the machine"
        return MeasuredModel(model=name, shapes=shapes or "", error=ended)
    process.join()
    return row


class ResultReceiver(Protocol):
    """Receiver of a measured row, such as the sending end of a multiprocessing pipe."""

    def send(self, row: MeasuredModel, /) -> None: ...


def measure_and_send(results: ResultReceiver, name: str, shapes: str | None, amounts: WorkAmounts, server: Any) -> None:
    """Measure a model; send the row, or the reason for the failure, to `results`."""
    try:
        from tests.benchmarks.gpu.measures import measure  # imports torch, which the first process does not need

        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, shapes, amounts, server, Path(folder))
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        row = MeasuredModel(model=name, shapes=shapes or "", error=reason[:300])
    results.send(row)
