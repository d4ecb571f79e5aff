"""Metrics defined by a user's own Python function. Only this module loads code that users name.

A function is named on the command line, in the user's own configuration file or in Python. Its source text is read
once, when the command starts, and sent to the workers. Content of a store, a run or a request is never loaded here.
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
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.metrics.metric import Evidence, Metric, Scored, ScoreRange

Better = Literal["higher", "lower", "neither"]
"""Direction of the scores: whether the higher or the lower of two scores is better, or neither."""
Function = TypeVar("Function", bound=Callable[..., Any])
DECLARATION = "__plumbline_metric__"
"""Name of the function attribute that contains its Declaration."""
NAME = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
NAMED = re.compile(rf"(?P<location>.+):(?P<name>{NAME})")
"""Pattern for FILE.py:NAME or PACKAGE.MODULE:NAME."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
MAX_BYTES = 1_000_000
"""Maximum size of a source file in bytes."""
MAX_REASON = 300
"""Maximum number of characters quoted from an error message."""
_LOADING = RLock()


class Declaration(NamedTuple):
    """The range and direction of a function's scores, and whether it is called with batches."""

    score_range: ScoreRange | None = None
    better: Better = "higher"
    batches: bool = False


def metric(
    *, score_range: tuple[float, float] | None = None, better: Better = "higher", batches: bool = False
) -> Callable[[Function], Function]:
    """Declare the range and direction of a function's scores; without it the defaults apply (docs/plugins.md).

    Args:
        score_range: The lowest and highest score. A score outside this range is an error for its row; gates rely on it.
        better: Which of two scores is better: the "higher" one, the "lower" one or "neither".
        batches: True if the function takes a list of images and a list of prompts, and returns a score for each image.

    Raises:
        ConfigError: A value is invalid.
    """
    if better not in get_args(Better):
        raise ConfigError(f"metric: expected better to be one of {', '.join(get_args(Better))}, got {better!r}")
    if score_range is not None:
        try:
            low, high = map(float, score_range)
        except (TypeError, ValueError):
            low = high = 0.0
        if not low < high:
            raise ConfigError(
                f"metric: expected score_range to be two numbers, the lower number first, got {score_range!r}"
            )
        score_range = low, high
    declared = Declaration(score_range, better, bool(batches))

    def declare(function: Function) -> Function:
        setattr(function, DECLARATION, declared)
        return function

    return declare


@dataclass(frozen=True)
class Code:
    """The digest and declaration of a function, as stored in records. Only the subclass UserCode can be run."""

    digest: str
    """SHA-256 of the file's text, truncated to 16 hexadecimal digits."""
    score_range: ScoreRange | None = None
    better: Better = "higher"
    batches: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionConfig(Metric):
    kind: Literal["function"] = "function"
    story: ClassVar[str] = "is computed by a function of the user's own"
    chain: ClassVar[tuple[str, ...]] = ("function_values", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ()
    function: str
    """FILE.py:NAME or PACKAGE.MODULE:NAME; records contain only the name."""
    about: str = ""
    """Description for newcomers, shown in the report. Defaults to the first line of the function's docstring."""
    code: Code
    """Code of the named function; it cannot be set in a configuration."""

    @property
    def ranks(self) -> bool:
        return self.code.better != "neither"

    @property
    def prefers_lower(self) -> bool:
        return self.code.better == "lower"

    @property
    def score_range(self) -> ScoreRange | None:
        return self.code.score_range

    def function_options(self) -> Mapping[str, Any]:
        return {"function": self.function, "code": self.code.digest, "score_range": self.code.score_range}

    def score_options(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["value"])


class Source(NamedTuple):
    """Source text that defines a function. Loading it executes the text, and raises ConfigError if that fails."""

    name: str
    location: str
    """The file or module as the user named it."""
    text: str
    file: str
    """Path of the source file, for tracebacks and `__file__`."""
    package: str = ""
    """Package that contains the file, for relative imports."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def load(self) -> Callable[..., Any]:
        try:
            found = vars(_import_text(self))
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"metric {self.location}: {describe_error(error, self.file)}; correct the file"
            ) from error
        if not callable(found.get(self.name)):
            functions = [name for name, value in found.items() if inspect.isfunction(value)]
            raise ConfigError(f"metric {self.location}: no function {self.name!r}; {suggest(self.name, functions)}")
        function: Callable[..., Any] = found[self.name]
        return function


class GivenFunction(NamedTuple):
    """A function that was passed as a Python object, with the same properties as a Source."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def location(self) -> str:
        return str(getattr(self.function, "__module__", ""))

    @property
    def file(self) -> str | None:
        return inspect.getsourcefile(self.function) if inspect.isroutine(self.function) else None

    @property
    def digest(self) -> str:
        return ""

    def load(self) -> Callable[..., Any]:
        return self.function


Origin = Source | GivenFunction


class UserCode(Code):
    """Code of a function that can be called.

    Pickling a function from a file sends the file's text, which is executed on arrival.
    """

    origin: Origin

    def __init__(self, origin: Origin, declared: Declaration) -> None:
        super().__init__(origin.digest, *declared)
        self.__dict__["origin"] = origin  # not a field, so no record contains it

    @property
    def where(self) -> str:
        """Return the function's name with its file or module, for messages."""
        return f"{self.origin.name} of {self.origin.location}"

    def load(self) -> Callable[..., Any]:
        """Return the function; raise ConfigError if its source text fails to run here."""
        return self.origin.load()


class _TextLoader(importlib.abc.InspectLoader):
    def __init__(self, source: Source) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source.text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source.text, self.source.file)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.source.file
        super().exec_module(module)


def _import_text(source: Source) -> ModuleType:
    """Return the module defined by a source text.

    A process executes each text only once, so that its functions share the models they load.
    """
    digest = hashlib.sha256(f"{source.file}\0{source.text}".encode()).hexdigest()[:16]
    name = ".".join(filter(None, (source.package, f"plumbline_metric_{digest}")))
    with _LOADING:
        if name not in sys.modules:
            spec = importlib.util.spec_from_loader(name, _TextLoader(source))
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                with redirect_stdout(sys.stderr):  # programs read the standard output of jobs
                    spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def read_source(named: str) -> Source:
    """Read the source of FILE.py:NAME or PACKAGE.MODULE:NAME without executing it; raise ConfigError if unusable."""
    found = NAMED.fullmatch(named)
    if found is None:
        raise ConfigError(f"metric {named!r}: expected FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    location, name = found["location"], found["name"]
    if "://" in location:
        raise ConfigError(f"metric {location}: expected a local file; copy it to this machine")
    package = ""
    if location.endswith(".py"):
        file = Path(os.path.expanduser(location)).absolute()  # noqa: PTH111 - leaves an unknown user's ~ as it is
    else:
        file = _find_file_of_module(location)
        package = location if file.name == "__init__.py" else location.rpartition(".")[0]
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"metric {location}: expected a Python file, found something else; correct the path")
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"metric {location}: expected at most {MAX_BYTES:,} bytes, found more; shorten the file")
        with tokenize.open(file) as opened:
            return Source(name, location, opened.read(), str(file), package)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"metric {location}: {describe_error(error)}; correct the path or the file") from error


def _find_file_of_module(module: str) -> Path:
    """Return the file of an importable module; this imports the packages that contain it."""
    try:
        with redirect_stdout(sys.stderr):
            spec = importlib.util.find_spec(module) if MODULE.fullmatch(module) else None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"metric {module}: {describe_error(error)}; install or correct the package") from error
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise ConfigError(
            f"metric {module}: expected a file name that ends in .py, or an importable Python module; correct the "
            "name, or install its package"
        )
    return Path(str(spec.origin))


def read_function_options(origin: Origin) -> dict[str, Any]:
    """Return the options of a metric defined by this function; raise ConfigError if it cannot be loaded or called."""
    if not re.fullmatch(NAME, origin.name):
        raise ConfigError(
            f"metric {origin.name!r}: expected a function with a name of up to 100 letters, digits and underscores; "
            "define it with def"
        )
    function = origin.load()
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"metric {origin.location}: expected a function {origin.name}(image, prompt), found "
            f"{origin.name}{inspect.signature(function)}; correct it"
        ) from error
    except ValueError:
        pass  # the parameters of a builtin are unknown
    declared = getattr(function, DECLARATION, Declaration())
    about, _, _ = (inspect.getdoc(function) or "").strip().partition("\n")
    return {"kind": "function", "function": origin.name, "about": about, "code": UserCode(origin, declared)}


def require_runnable(code: Code) -> UserCode:
    """Return the code if it can be run; raise ConfigError if it comes from a record, which contains only the digest."""
    if not isinstance(code, UserCode):
        raise ConfigError("records do not contain a function's code; give its file, as in metric=FILE.py:FUNCTION")
    return code


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Return an error as one line of text, with the line number in `file` at which it was raised."""
    text = " ".join(" ".join(traceback.format_exception_only(error)).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return text[:MAX_REASON] + (f" at line {lines[-1]}" if lines else "")


def is_function_name(metric: Any) -> bool:
    """Return True if an entry in a list of metrics is a function or names one, and not a predefined metric."""
    return callable(metric) or (isinstance(metric, str) and (":" in metric or metric.endswith(".py")))
