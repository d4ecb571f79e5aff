"""Reads and loads the code of functions that a person names as metrics, and no other code.

A function is named on a command line, in the user's own configuration file or in Python. Its text is read once, when
the command starts, and sent to the workers. Content of a store, a run or a request is never loaded here.
"""

import hashlib
import importlib.abc
import importlib.util
import inspect
import os
import re
import sys
import tokenize
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, NamedTuple, Protocol

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.metrics.function import DECLARATION, Code, Declaration

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
NAMED = re.compile(rf"(?P<place>.+):(?P<name>{NAME})")
"""FILE.py:NAME or PACKAGE.MODULE:NAME."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
MAX_BYTES = 1_000_000
"""Maximum size of a file."""
MAX_REASON = 300
"""Characters of an error that are repeated."""
_LOADING = RLock()


class Origin(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str:
        """File or module that defines the function, for messages."""

    @property
    def file(self) -> str | None:
        """Path of its text, if it is known."""

    @property
    def digest(self) -> str: ...

    def load(self) -> Callable[..., Any]:
        """Return the function; raise ConfigError if it does not exist."""


class Source(NamedTuple):
    """A function in a text; loading the function runs the text."""

    name: str
    place: str
    """The file or module as the person named it."""
    text: str
    file: str
    """The path of the text, for tracebacks and `__file__`."""
    package: str = ""
    """The package that relative imports start from."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def load(self) -> Callable[..., Any]:
        try:
            found = vars(_module(self))
        except (Exception, SystemExit) as error:
            raise ConfigError(f"metric {self.place}: {describe_error(error, self.file)}; correct the file") from error
        if not callable(found.get(self.name)):
            functions = [name for name, value in found.items() if inspect.isfunction(value)]
            raise ConfigError(f"metric {self.place}: no function {self.name!r}; {suggest(self.name, functions)}")
        function: Callable[..., Any] = found[self.name]
        return function


class Given(NamedTuple):
    """A function that a program passed in this process."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def place(self) -> str:
        return str(getattr(self.function, "__module__", ""))

    @property
    def file(self) -> str | None:
        return inspect.getsourcefile(self.function) if inspect.isroutine(self.function) else None

    @property
    def digest(self) -> str:
        return ""

    def load(self) -> Callable[..., Any]:
        return self.function


class UserCode(Code):
    """A function that can be called; a pickled function of a file is the file's text, which is run on arrival."""

    origin: Origin

    def __init__(self, origin: Origin, declared: Declaration) -> None:
        super().__init__(origin.digest, *declared)
        self.__dict__["origin"] = origin  # not a field, so no record contains it

    @property
    def where(self) -> str:
        """The function and its file or module, for messages."""
        return f"{self.origin.name} of {self.origin.place}"

    def load(self) -> Callable[..., Any]:
        """Return the function; raise ConfigError if its text does not run here."""
        return self.origin.load()


class _TextLoader(importlib.abc.InspectLoader):
    """Makes a module from a text."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source.text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source.text, self.source.file)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.source.file
        super().exec_module(module)


def _module(source: Source) -> ModuleType:
    """Return the module of a text; a process runs each text once, so that its functions share what they load."""
    digest = hashlib.sha256(f"{source.file}\0{source.text}".encode()).hexdigest()[:16]
    name = ".".join(filter(None, (source.package, f"plumbline_metric_{digest}")))
    with _LOADING:
        if name not in sys.modules:
            spec = importlib.util.spec_from_loader(name, _TextLoader(source))
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                with redirect_stdout(sys.stderr):  # what a job prints is read by programs
                    spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def read_source(named: str) -> Source:
    """Return the text that defines a function, FILE.py:NAME or PACKAGE.MODULE:NAME; nothing of it is run.

    Raises ConfigError if there is no such file or module, or it is too large or not Python.
    """
    found = NAMED.fullmatch(named)
    if found is None:
        raise ConfigError(f"metric {named!r}: expected FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    place, name = found["place"], found["name"]
    if "://" in place:
        raise ConfigError(f"metric {place}: expected a file of this machine; copy it here")
    package = ""
    if place.endswith(".py"):
        file = Path(os.path.expanduser(place)).absolute()  # noqa: PTH111 - leaves an unknown user's ~ as it is
    else:
        file = _file_of_module(place)
        package = place if file.name == "__init__.py" else place.rpartition(".")[0]
    return Source(name, place, _read_text(file, place), str(file), package)


def _file_of_module(place: str) -> Path:
    """Return the file of a module that can be imported; the packages that contain it are imported for it."""
    try:
        with redirect_stdout(sys.stderr):
            spec = importlib.util.find_spec(place) if MODULE.fullmatch(place) else None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"metric {place}: {describe_error(error)}; install or correct the package") from error
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise ConfigError(
            f"metric {place}: expected a file that ends in .py, or a module in Python that can be imported; correct "
            "the name, or install its package"
        )
    return Path(str(spec.origin))


def _read_text(file: Path, place: str) -> str:
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"metric {place}: expected a file of Python, found something else; correct the path")
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"metric {place}: expected at most {MAX_BYTES:,} bytes, found more; shorten the file")
        with tokenize.open(file) as opened:
            return opened.read()
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"metric {place}: {describe_error(error)}; correct the path or the file") from error


def function_options(origin: Origin) -> dict[str, Any]:
    """Return the options of a metric (FunctionConfig) that is this function.

    Raises ConfigError if it cannot be loaded, or takes no image and prompt.
    """
    if not re.fullmatch(NAME, origin.name):
        raise ConfigError(
            f"metric {origin.name!r}: expected a function with a name of up to 100 letters, digits and underscores; "
            "define it by def"
        )
    function = origin.load()
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"metric {origin.place}: expected a function {origin.name}(image, prompt), found "
            f"{origin.name}{inspect.signature(function)}; correct it"
        ) from error
    except ValueError:
        pass  # a builtin does not say what it takes
    declared = getattr(function, DECLARATION, Declaration())
    about, _, _ = (inspect.getdoc(function) or "").strip().partition("\n")
    return {"kind": "function", "function": origin.name, "about": about, "code": UserCode(origin, declared)}


def runnable(code: Code) -> UserCode:
    """Return the code if it can be run; raise ConfigError if it comes from a record, which keeps only a digest."""
    if not isinstance(code, UserCode):
        raise ConfigError("a record keeps no code of a function; name its file, as in metric=FILE.py:FUNCTION")
    return code


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Return an error in one line, with the line of the file that raised it."""
    text = " ".join(" ".join(traceback.format_exception_only(error)).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" at line {lines[-1]}" if lines else ""
    return f"{text[:MAX_REASON]}{place}"


def names_function(metric: Any) -> bool:
    """Return True if an entry of a list of metrics is a function or names one; others are names of choices."""
    return callable(metric) or (isinstance(metric, str) and (":" in metric or metric.endswith(".py")))
