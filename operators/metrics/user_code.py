"""Loads and runs users' own Python functions.

Only this module executes code that users name. It imports nothing but the standard library, so that the Python
interpreter of another environment can load it without Plumbline (plugins/environments/program.py).
"""

from __future__ import annotations  # another Python may be older than ours

import importlib.abc
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from hashlib import sha256
from threading import RLock
from types import ModuleType
from typing import Any

DECLARATION_ATTRIBUTE = "__plumbline_metric__"
"""Name of the function attribute that contains a declaration: range, direction, and whether it takes batches."""
MAX_REASON_CHARACTERS = 300
"""Maximum number of characters quoted from an error message."""
_LOADING_LOCK = RLock()


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
    with _LOADING_LOCK:
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
    """Return the names of all functions in a module's namespace, including imported ones."""
    return [name for name, value in vars(module).items() if inspect.isfunction(value)]


def describe_unsupported_parameters(function: Callable[..., Any]) -> str | None:
    """Return a function's parameters if the function cannot be called with an image and a prompt, otherwise None."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return str(inspect.signature(function))
    except ValueError:
        pass  # the parameters of a builtin are unknown
    return None


def read_first_line(function: Callable[..., Any]) -> str:
    """Return the first line of a function's docstring, or an empty string if it has none."""
    return (inspect.getdoc(function) or "").strip().partition("\n")[0]


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Return an error as one line of text, with the line number in `file` at which it was raised."""
    text = " ".join(" ".join(traceback.format_exception_only(type(error), error)).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return text[:MAX_REASON_CHARACTERS] + (f" at line {lines[-1]}" if lines else "")


def to_float(value: Any) -> float:
    """Return a number, or an array library's scalar, as a float; nan for anything else."""
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", None):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
