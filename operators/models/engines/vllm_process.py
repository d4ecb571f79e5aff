"""Runs vLLM's engine core in a process of its own, which ends with its parent and reports why it failed.

vLLM starts that process, but it outlives a parent that is killed, it prints the reason why it cannot start instead of
raising it, and if it is killed, `LLMEngine.step` waits forever. So `_run_core` runs in the new process, around vLLM's
own function. It is connected to the parent by a pipe, and the end of the pipe is the end of the process.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from plumbline.operators.base.errors import ModelError

PR_SET_PDEATHSIG = 1
"""Argument of Linux's `prctl` that sets the signal for a process whose parent thread has ended."""
CORE_LOGGER = "vllm.v1.engine.core"
MAX_REPORT_BYTES = 4096
MAX_SECONDS_TO_END = 30
"""Seconds that a failed process may take to free its memory and report its error."""
_starting = threading.Lock()


class CoreError(ModelError):
    """Error of the engine's process. The message contains the type and the text of the original error."""


class EngineInOwnProcess:
    """An LLMEngine whose core runs in a process of its own; if that process fails, methods raise CoreError."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Start the process, and wait until it has loaded the model.

        The process ends when the calling thread ends.

        Args:
            make: Function that builds a vllm.LLMEngine with enable_multiprocessing=True. Its own errors are raised
                unchanged; an error in the new process is raised as CoreError.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        self._dead_error = EngineDeadError
        self._cause = "its process has not ended, and reports no error"
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        with _starting, writer, _run_in_core(partial(_run_core, writer)):
            try:
                self._engine = make()
            except RuntimeError as error:  # vLLM says only that the process has ended
                writer.close()
                self.pid = self._read_pid()
                if self.pid is None or not self._reader.poll(MAX_SECONDS_TO_END):  # another error than its end
                    raise
                raise CoreError(self._read_cause()) from error
        self.pid = self._read_pid()
        self.model_config, self.renderer = self._engine.model_config, self._engine.renderer
        self.engine_core = self._engine.engine_core
        self._watcher = threading.Thread(target=self._watch, name="vllm-watcher", daemon=True)
        self._watcher.start()

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        """Send a request to the process, without the pixels of images that are in the process's cache.

        vLLM keeps the same list of cached images here as in the process, so one thread must send all requests.
        """
        cache = self.renderer.mm_processor_cache
        images = [] if cache is None else [one for own in prompt.get("mm_hashes", {}).values() for one in own]
        new = [image for image in images if not cache.is_cached_item(image)]
        if images:
            pixels = {kind: list(own) for kind, own in prompt["mm_kwargs"].items()}
            self._engine.input_processor.inject_into_mm_cache(prompt["mm_hashes"], pixels)
            prompt = {**prompt, "mm_kwargs": type(prompt["mm_kwargs"])(pixels)}
        try:
            with self._name_cause():
                self._engine.add_request(name, prompt, params)
        except Exception:
            for image in new:  # it was not sent
                cache.invalidate(image)
            raise

    def step(self) -> Any:
        with self._name_cause():
            return self._engine.step()

    @contextmanager
    def _name_cause(self) -> Iterator[None]:
        """Raise CoreError instead of vLLM's error, which does not say why the process has failed."""
        try:
            yield
        except self._dead_error as error:
            self._watcher.join(MAX_SECONDS_TO_END)
            raise CoreError(self._cause) from error

    def _watch(self) -> None:
        with self._reader:
            self._cause = self._read_cause()
        self.engine_core.resources.engine_dead = True  # refuses calls from now on
        # vLLM would wait forever for the next output, and for the results of calls
        self.engine_core.outputs_queue.put_nowait(self._dead_error())
        for result in list(self.engine_core.utility_results.values()):
            result.set_exception(self._dead_error())

    def _read_pid(self) -> int | None:
        """Return the id of the process; None if it was not started."""
        try:
            return int(self._reader.recv_bytes(MAX_REPORT_BYTES))
        except EOFError:
            return None

    def _read_cause(self) -> str:
        """Wait until the process ends, and return its error."""
        cause = f"its process {self.pid} has ended without an error; it may have been killed for its memory"
        try:
            cause = self._reader.recv_bytes(MAX_REPORT_BYTES).decode(errors="replace")
            self._reader.recv_bytes(MAX_REPORT_BYTES)
        except (EOFError, OSError):  # OSError: it was killed while it wrote
            pass
        return cause


def describe_error(error: BaseException) -> str:
    """Return one line with the error's type and the start of its message."""
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, CoreError) else f"{type(error).__name__}: {text}"


@contextmanager
def _run_in_core(run: Callable[..., None]) -> Iterator[None]:
    """Let processes that vLLM starts for engine cores call `run` instead of vLLM's own function."""
    from vllm.v1.engine.core import EngineCoreProc

    original = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = staticmethod(run)
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(original)


def _run_core(writer: Connection, *arguments: Any, **options: Any) -> None:
    """Run an engine core in this process until it is shut down, or until the parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is None or os.getppid() != parent.pid:  # it ended before the signal was set
        return
    writer.send_bytes(str(os.getpid()).encode())
    from vllm.v1.engine.core import EngineCoreProc

    if os.environ["VLLM_LOGGING_LEVEL"].upper() == "ERROR":
        logging.getLogger(CORE_LOGGER).setLevel(logging.CRITICAL)  # the parent raises the error
    try:
        EngineCoreProc.run_engine_core(*arguments, **options)
    except Exception as error:
        writer.send_bytes(describe_error(error).encode()[:MAX_REPORT_BYTES])
        raise SystemExit(1) from None
