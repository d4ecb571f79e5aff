"""The worker for a function with its own environment: a process that runs that environment's Python.

The worker runs program.py, and talks to Plumbline's process through pipes: the worker's standard input and output.
Every message is a length followed by that many bytes. This is multiprocessing's format, without its pickled objects.
The first request describes the function to load, as JSON, and the reply describes the loaded function. Each later
request is JSON with the prompts and the sizes of the images, followed by a message with the RGB pixels of each image.
The reply is JSON with the values.

A worker serves one function, and is started by this process or by a Ray actor. The process that started a worker also
stops it; if that process dies, the worker exits because its input ends.
"""

import json
import os
import signal
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import Image

from plumbline.operators.base.batches import is_device_lost
from plumbline.operators.base.errors import PlumblineError, hide_secrets, replace_invisible
from plumbline.operators.metrics import user_code
from plumbline.plugins.environments.environments import Environment

PROGRAM_FILE = Path(__file__).with_name("program.py")
MAX_REPLY_BYTES = 1_000_000
"""Maximum size of a worker's reply in bytes."""
MAX_CONSECUTIVE_DEATHS = 10
"""Maximum number of times in a row that a worker may end without returning values. After that no worker is started,
because a new worker would not score any row either. The limit allows for halving a batch until it contains only the
image that crashes the worker.
"""
MAX_QUOTED_OUTPUT_CHARACTERS = 200
"""Maximum number of characters quoted from a worker's output."""
OUTPUT_BYTES_AT_ONCE = 10_000
"""Number of bytes of a worker's output that are read at once."""


class WorkerDied(PlumblineError):
    """Raised if a worker ends, takes too long, or sends something other than a reply."""


class Worker:
    """A function in an environment of its own; its process is started when a request needs one."""

    def __init__(self, environment: Environment, source: Mapping[str, Any]) -> None:
        """Prepare for the function described by `source`, the arguments of program.LoadedFunction."""
        self.environment, self.source = environment, source
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._deaths = 0

    def describe(self) -> dict[str, Any]:
        """Return the worker's description of the function, as program.LoadedFunction makes it.

        Raises WorkerDied or EnvironmentFailed if the worker sends no description.
        """
        with self._lock:
            return self._start().described

    def call(self, images: Sequence[Image.Image], texts: Sequence[str], *, batches: bool) -> Mapping[str, Any]:
        """Return the worker's reply: the `values`, or the error that the function `raised`.

        Raises WorkerDied or EnvironmentFailed if the worker sends no reply.
        """
        request = {"texts": texts, "sizes": [image.size for image in images], "batches": batches}
        with self._lock:
            process = self._start()
            if "declared" in process.described:
                reply = self._ask(process, request, images)
                self._deaths = 0
                if is_device_lost(RuntimeError(str(reply.get("raised")))):
                    self._end_process()  # only a new process can use its GPU again
                return reply
            self._end_process()  # it could not load the function, but another might
            return {"raised": process.described.get("raised", "the function is missing")}

    def stop(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._end_process()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None

    def _start(self) -> "_Process":
        if self._process is None:
            if self._deaths >= MAX_CONSECUTIVE_DEATHS:
                raise WorkerDied(f"ended {MAX_CONSECUTIVE_DEATHS} processes in a row, so no further process is started")
            process = self._process = _Process(self.environment.ensure_python())
            process.described = self._ask(process, self.source)
        return self._process

    def _ask(
        self, process: "_Process", request: Mapping[str, Any], images: Sequence[Image.Image] = ()
    ) -> dict[str, Any]:
        try:
            return process.ask(request, images, self.environment.timeout)
        except WorkerDied:
            self._deaths += 1
            self._end_process()
            raise


class _Process:
    def __init__(self, python: Path) -> None:
        # -I: neither PYTHONPATH nor the folder of the file may hide the environment's packages. In a session of its
        # own, the worker does not receive the interrupt key, and its children end with it.
        self.popen = subprocess.Popen(
            [str(python), "-I", str(PROGRAM_FILE), str(Path(user_code.__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.requests = Connection(os.dup(self.popen.stdin.fileno()), readable=False)
        self.replies = Connection(os.dup(self.popen.stdout.fileno()), writable=False)
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.output: deque[bytes] = deque(maxlen=2)
        self.reader = threading.Thread(target=_keep_last_lines, args=(self.popen.stderr, self.output), daemon=True)
        self.reader.start()
        self.end = weakref.finalize(self, _end_process, self.popen, self.requests, self.replies)
        self.described: dict[str, Any] = {}

    def ask(self, request: Mapping[str, Any], images: Sequence[Image.Image], timeout: float) -> dict[str, Any]:
        late = threading.Event()

        def interrupt() -> None:
            late.set()
            _kill_process(self.popen)  # whatever waits for the worker's pipes now gets an error

        timer = threading.Timer(timeout, interrupt)
        timer.daemon = True
        timer.start()
        try:
            self.requests.send_bytes(json.dumps(request).encode())
            for image in images:
                self.requests.send_bytes(image.tobytes())
            reply = json.loads(self.replies.recv_bytes(MAX_REPLY_BYTES))
            if not isinstance(reply, dict):
                raise ValueError(f"expected an object, found {type(reply).__name__}")
            return reply
        except (EOFError, OSError, ValueError) as error:
            if late.is_set():
                raise WorkerDied(f"took more than {timeout:g} seconds") from error
            raise WorkerDied(self._describe_end(error)) from error
        finally:
            timer.cancel()

    def _describe_end(self, error: Exception) -> str:
        if not isinstance(error, EOFError | BrokenPipeError | ConnectionError):
            return f"sent something other than a reply of at most {MAX_REPLY_BYTES:,} bytes"
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=10)
        self.reader.join(timeout=1)
        code = self.popen.poll()
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        printed = replace_invisible(" ".join(b" ".join(self.output).decode(errors="replace").split()))
        last = f" after printing {hide_secrets(printed)[-MAX_QUOTED_OUTPUT_CHARACTERS:]!r}" if printed else ""
        return f"ended its process ({how}){last}"


def _keep_last_lines(stream: Any, output: deque[bytes]) -> None:
    """Read a worker's output, so that the worker never waits for a reader, and keep the last lines."""
    with stream, suppress(ValueError, OSError):
        while line := stream.readline(OUTPUT_BYTES_AT_ONCE):
            output.append(line)


def _kill_process(popen: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)


def _end_process(popen: "subprocess.Popen[bytes]", requests: Connection, replies: Connection) -> None:
    _kill_process(popen)
    popen.wait()
    requests.close()
    replies.close()
