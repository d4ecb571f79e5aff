"""Runs the code of users' functions, in this process or as the worker of another environment's Python.

Only this module executes code that users name. Another Python runs this file as a program: it imports nothing of
Plumbline, and outside the standard library only Pillow. The protocol is described in operators/metrics/worker.py.
"""

from __future__ import annotations  # another Python may be older than ours

import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import reprlib
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from hashlib import sha256
from threading import RLock
from types import ModuleType
from typing import Any

DECLARATION = "__plumbline_metric__"
"""Name of the function attribute that contains a declaration: range, direction, and whether it takes batches."""
MAX_REASON = 300
"""Maximum number of characters quoted from an error message."""
MAX_NAMES = 100
"""Maximum number of functions of a module that a worker lists."""
_LOADING = RLock()


class _TextLoader(importlib.abc.InspectLoader):
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.text, self.file)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.file
        super().exec_module(module)


def import_text(text: str, file: str, package: str) -> ModuleType:
    """Return the module defined by a source text; `file` is its path, `package` the package for relative imports.

    A process executes each text only once, so that its functions share the models they load.
    """
    digest = sha256(f"{file}\0{text}".encode()).hexdigest()[:16]
    name = ".".join(filter(None, (package, f"plumbline_metric_{digest}")))
    with _LOADING:
        if name not in sys.modules:
            spec = importlib.util.spec_from_loader(name, _TextLoader(text, file))
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                with redirect_stdout(sys.stderr):  # programs read the standard output of jobs
                    spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def list_functions(module: ModuleType) -> list[str]:
    """Return the names of a module's functions."""
    return [name for name, value in vars(module).items() if inspect.isfunction(value)]


def find_other_parameters(function: Callable[..., Any]) -> str | None:
    """Return the parameters of a function that cannot be called with an image and a prompt; None if it can be."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return str(inspect.signature(function))
    except ValueError:
        pass  # the parameters of a builtin are unknown
    return None


def read_first_line(function: Callable[..., Any]) -> str:
    """Return the first line of a function's docstring."""
    return (inspect.getdoc(function) or "").strip().partition("\n")[0]


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Return an error as one line of text, with the line number in `file` at which it was raised."""
    text = " ".join(" ".join(traceback.format_exception_only(type(error), error)).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return text[:MAX_REASON] + (f" at line {lines[-1]}" if lines else "")


def to_float(value: Any) -> float:
    """Convert a number, or an array library's scalar, to float; return nan for anything else."""
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", None):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


class WorkerFunction:
    """A function that a worker has loaded, with the requests that a worker answers."""

    def __init__(self, name: str, location: str, text: str | None, file: str, package: str) -> None:
        """Load a function from a source text, or from an installed module if `text` is None."""
        self.file = file
        module = importlib.import_module(location) if text is None else import_text(text, file, package)
        self.function = vars(module).get(name)
        self.functions = list_functions(module)[:MAX_NAMES]

    def describe(self) -> dict[str, Any]:
        if not callable(self.function):
            return {"functions": self.functions}
        return {
            "declared": getattr(self.function, DECLARATION, None),
            "about": read_first_line(self.function)[:MAX_REASON],
            "other_parameters": find_other_parameters(self.function),
        }

    def call(self, images: Sequence[Any], texts: Sequence[str], batches: bool) -> dict[str, Any]:
        assert self.function is not None
        try:
            if batches:
                values = list(self.function(list(images), list(texts)))
            else:
                values = list(map(self.function, images, texts))
            return {"values": [self._format_value(value) for value in values]}
        except (Exception, SystemExit) as error:
            return {"raised": describe_error(error, self.file)}

    @staticmethod
    def _format_value(value: Any) -> float | str:
        """Return a finite number unchanged; for anything else, return a description."""
        number = to_float(value)
        return number if math.isfinite(number) else reprlib.repr(value)


def _declare(
    *, score_range: Any = None, better: str = "higher", batches: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function's scores like plumbline.metric, but leave checking the values to Plumbline's process."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, DECLARATION, (score_range, better, bool(batches)))
        return function

    return declare


def _serve() -> None:
    """Answer the requests that arrive on the standard input until it ends; see operators/metrics/worker.py."""
    from multiprocessing.connection import Connection

    from PIL import Image

    # Packages print: their output goes to standard error, and the pipes are kept under numbers that nobody else uses.
    requests, replies = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if importlib.util.find_spec("plumbline") is None:  # for the decorator
        stand_in: Any = ModuleType("plumbline")
        stand_in.metric = _declare
        sys.modules["plumbline"] = stand_in
    function: WorkerFunction | None = None
    while True:
        try:
            request = json.loads(requests.recv_bytes())
        except EOFError:
            return
        if function is None:
            try:
                function = WorkerFunction(**request)
                reply = function.describe()
            except (Exception, SystemExit) as error:
                reply = {"raised": describe_error(error, request["file"])}
        else:
            images = [Image.frombytes("RGB", tuple(size), requests.recv_bytes()) for size in request["sizes"]]
            reply = function.call(images, request["texts"], request["batches"])
        replies.send_bytes(json.dumps(reply, default=repr).encode())


if __name__ == "__main__":
    _serve()
