"""Metrics defined by a user's own Python function.

A function is named on the command line, in the user's own configuration file or in Python. Its source text is read
once, when the command starts, and sent to the workers. Code from a store, a run or a request is never loaded here.
operators/metrics/user_code.py runs the text in this process. A plugin may run it in an environment of its own.
"""

import hashlib
import importlib.util
import inspect
import os
import re
import sys
import tokenize
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

from PIL import Image

from plumbline.operators.base.errors import ConfigError, describe_missing_plugin, suggest
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.base.rows import list_values
from plumbline.operators.metrics.metric import Evidence, Metric, Scored, ScoreRange
from plumbline.operators.metrics.user_code import (
    DECLARATION_ATTRIBUTE,
    describe_error,
    describe_unsupported_parameters,
    import_text,
    list_functions,
    read_first_line,
)

BetterDirection = Literal["higher", "lower", "neither"]
"""Direction of the scores: whether the higher or the lower of two scores is better, or neither."""
Function = TypeVar("Function", bound=Callable[..., Any])
FUNCTION_NAME_REGEX = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
FUNCTION_REFERENCE_PATTERN = re.compile(rf"(?P<location>.+):(?P<name>{FUNCTION_NAME_REGEX})")
"""Pattern for FILE.py:NAME or PACKAGE.MODULE:NAME."""
MODULE_NAME_PATTERN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
MAX_SOURCE_BYTES = 1_000_000
"""Maximum size of a source file in bytes."""
ImageFunction = Callable[[Sequence[Image.Image], Sequence[str]], list[Any]]
"""Function that returns a value for each image with its prompt."""


class FunctionDeclaration(NamedTuple):
    """Declaration of a function by its author: range and direction of scores, and whether it takes batches."""

    score_range: ScoreRange | None = None
    better: BetterDirection = "higher"
    batches: bool = False


class FunctionDescription(NamedTuple):
    """What a function's author declares about it, and the first line of its docstring."""

    declared: FunctionDeclaration
    about: str


def metric(
    *, score_range: tuple[float, float] | None = None, better: BetterDirection = "higher", batches: bool = False
) -> Callable[[Function], Function]:
    """Return a decorator that declares the range and direction of a function's scores (docs/plugins.md).

    Args:
        score_range: The lowest and highest score. Scores outside this range are errors; gates rely on this.
        better: Which of two scores is better: the "higher" one, the "lower" one or "neither".
        batches: True if the function takes a list of images and a list of prompts, and returns a score for each image.

    Raises:
        ConfigError: A value is invalid.
    """
    if not isinstance(better, str) or better not in get_args(BetterDirection):
        raise ConfigError(
            f"metric: expected better to be one of {', '.join(get_args(BetterDirection))}, got {better!r}"
        )
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
    declared = FunctionDeclaration(score_range, better, bool(batches))

    def declare(function: Function) -> Function:
        setattr(function, DECLARATION_ATTRIBUTE, declared)
        return function

    return declare


@dataclass(frozen=True)
class FunctionRecord:
    """A function's digest and declaration, as runs record them. Only the subclass UserCode can call the function."""

    digest: str
    """SHA-256 of the file's text, truncated to 16 hexadecimal digits."""
    score_range: ScoreRange | None = None
    better: BetterDirection = "higher"
    batches: bool = False
    packages: tuple[str, ...] = ()
    """Python version and exact packages of the function's environment; empty for a function without its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionConfig(Metric):
    kind: Literal["function"] = "function"
    story: ClassVar[str] = "is computed by the user's own function"
    chain: ClassVar[tuple[str, ...]] = ("function_values", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ()
    function: str
    """FILE.py:NAME or PACKAGE.MODULE:NAME; records contain only the name."""
    about: str = ""
    """Description for newcomers, shown in the report. Defaults to the first line of the function's docstring."""
    environment: Mapping[str, Any] | None = None
    """Environment of the function's own, which a plugin makes (plugins/environments/README.md). By default the function
    runs with the packages that are installed here.
    """
    code: FunctionRecord
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

    def list_function_options(self) -> Mapping[str, Any]:
        options = {"function": self.function, "code": self.code.digest, "score_range": self.code.score_range}
        return options | ({"packages": self.code.packages} if self.code.packages else {})

    def list_score_options(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["value"])


class SourceFunction(NamedTuple):
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

    @property
    def packages(self) -> tuple[str, ...]:
        return ()

    def load(self) -> Callable[..., Any]:
        try:
            module = import_text(self.text, self.file, self.package)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"metric {self.location}: {describe_error(error, self.file)}; correct the file"
            ) from error
        if not callable(function := vars(module).get(self.name)):
            raise make_missing_function_error(self.location, self.name, list_functions(module))
        return cast(Callable[..., Any], function)

    def describe(self) -> FunctionDescription:
        return _describe_function(self.load(), self.location, self.name)

    def open(self, *, batches: bool) -> ImageFunction:
        return partial(_call_function, self.load(), batches, self.name)


class GivenFunction(NamedTuple):
    """A function that was passed as a Python object; it can be described and called like a SourceFunction."""

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

    @property
    def packages(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> FunctionDescription:
        return _describe_function(self.function, self.location, self.name)

    def open(self, *, batches: bool) -> ImageFunction:
        return partial(_call_function, self.function, batches, self.name)


class FunctionOrigin(Protocol):
    """Where a user's function comes from: a source file, an object passed in Python, or a plugin's environment."""

    @property
    def name(self) -> str:
        """Name of the function in its file or module."""

    @property
    def location(self) -> str:
        """File or module that defines the function, as the user named it."""

    @property
    def file(self) -> str | None:
        """Path of the source file; None if it is unknown."""

    @property
    def digest(self) -> str:
        """Digest of the code, which is part of cell keys; empty if it is unknown."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Versions of Python and of packages, for use in cell keys; empty for a function that runs in this process."""

    def describe(self) -> FunctionDescription:
        """Return the function's declaration, and its docstring's first line; raise ConfigError if it is unusable."""

    def open(self, *, batches: bool) -> ImageFunction:
        """Return a function that scores several images.

        It may raise UnprocessableRowError for an image that cannot be scored.
        """


FUNCTION_ENVIRONMENTS = Extensions[Callable[[str, str, Any], FunctionOrigin]]("function_environments", {})
"""Readers of functions that run outside this process, from plugins. Arguments: the metric's key, for messages; the
function as the user named it; the value of the metric's option `environment`.
"""
ENVIRONMENT_READER = "uv"
"""Name of the reader that handles the `environment` option."""


def _call_function(
    function: Callable[..., Any], batches: bool, name: str, images: Sequence[Image.Image], texts: Sequence[str]
) -> list[Any]:
    copies = [image.copy() for image in images]  # in case the function changes them: others get the same images
    return list_values(function(copies, [*texts]), name) if batches else list(map(function, copies, texts))


def _describe_function(function: Callable[..., Any], location: str, name: str) -> FunctionDescription:
    check_parameters(location, name, describe_unsupported_parameters(function))
    return FunctionDescription(
        getattr(function, DECLARATION_ATTRIBUTE, FunctionDeclaration()), read_first_line(function)
    )


def check_parameters(location: str, name: str, other_parameters: str | None) -> None:
    if other_parameters is not None:
        raise ConfigError(
            f"metric {location}: expected a function {name}(image, prompt), found {name}{other_parameters}; change its "
            "parameters to (image, prompt)"
        )


def make_missing_function_error(location: str, name: str, functions: Sequence[str]) -> ConfigError:
    return ConfigError(f"metric {location}: no function {name!r}; {suggest(name, functions)}")


class UserCode(FunctionRecord):
    """The digest and declaration of a user's function, with the function itself, so that it can be called here."""

    origin: FunctionOrigin

    def __init__(self, origin: FunctionOrigin, declared: FunctionDeclaration) -> None:
        super().__init__(origin.digest, *declared, origin.packages)
        self.__dict__["origin"] = origin  # not a field, so no record contains it

    @property
    def where(self) -> str:
        """Return the function's name with its file or module, for messages."""
        return f"{self.origin.name} of {self.origin.location}"

    def open(self) -> ImageFunction:
        """Return a callable that takes several images; raise ConfigError if the function's source fails to run here."""
        return self.origin.open(batches=self.batches)


def split_name(named: str) -> tuple[str, str]:
    """Return the file or module, and the function's name, in FILE.py:NAME or PACKAGE.MODULE:NAME."""
    found = FUNCTION_REFERENCE_PATTERN.fullmatch(named)
    if found is None:
        raise ConfigError(f"metric {named!r}: expected FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    return found["location"], found["name"]


def read_function(key: str, named: str, environment: Any) -> FunctionOrigin:
    """Return the function FILE.py:NAME or PACKAGE.MODULE:NAME of the metric at `key`, without executing it here.

    Raise ConfigError if the function cannot be read, or if it needs an environment and the plugin `environments` is not
    installed.
    """
    if environment is None:
        return read_source(named)
    if ENVIRONMENT_READER not in FUNCTION_ENVIRONMENTS:
        raise ConfigError(describe_missing_plugin(f"{key}.environment: a part", "environments"))
    return FUNCTION_ENVIRONMENTS[ENVIRONMENT_READER](key, named, environment)


def read_source(named: str) -> SourceFunction:
    """Read the source of FILE.py:NAME or PACKAGE.MODULE:NAME without executing it; raise ConfigError if unusable."""
    location, name = split_name(named)
    if "://" in location:
        raise ConfigError(f"metric {location}: expected a local file; copy it to this machine")
    package = ""
    if location.endswith(".py"):
        file = Path(os.path.expanduser(location)).absolute()  # noqa: PTH111 - leaves an unknown user's ~ as it is
    else:
        file = _find_module_file(location)
        package = location if file.name == "__init__.py" else location.rpartition(".")[0]
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"metric {location}: expected a Python file, found something else; correct the path")
        if file.stat().st_size > MAX_SOURCE_BYTES:
            raise ConfigError(
                f"metric {location}: expected at most {MAX_SOURCE_BYTES:,} bytes, found more; shorten the file"
            )
        with tokenize.open(file) as opened:
            return SourceFunction(name, location, opened.read(), str(file), package)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"metric {location}: {describe_error(error)}; correct the path or the file") from error


def _find_module_file(module: str) -> Path:
    """Return the file of an importable module; this imports the packages that contain it."""
    try:
        with redirect_stdout(sys.stderr):
            spec = importlib.util.find_spec(module) if MODULE_NAME_PATTERN.fullmatch(module) else None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"metric {module}: {describe_error(error)}; install or correct the package") from error
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise ConfigError(
            f"metric {module}: expected a file name that ends in .py, or an importable Python module; correct the "
            "name, or install its package"
        )
    return Path(str(spec.origin))


def read_function_options(origin: FunctionOrigin) -> dict[str, Any]:
    """Return the options of a metric defined by this function; raise ConfigError if it cannot be loaded or called."""
    if not re.fullmatch(FUNCTION_NAME_REGEX, origin.name):
        raise ConfigError(
            f"metric {origin.name!r}: expected a function with a name of up to 100 letters, digits and underscores; "
            "define it with def"
        )
    declared, about = origin.describe()
    return {"kind": "function", "function": origin.name, "about": about, "code": UserCode(origin, declared)}


def require_runnable(code: FunctionRecord) -> UserCode:
    """Return the code if it can be run; raise ConfigError if it comes from a record, which contains only the digest."""
    if not isinstance(code, UserCode):
        raise ConfigError("records do not contain a function's code; give its file, as in metric=FILE.py:FUNCTION")
    return code


def is_function_name(metric: Any) -> bool:
    """Return True if an entry in a list of metrics is a user's function or names one, and not a predefined metric."""
    return callable(metric) or (isinstance(metric, str) and (":" in metric or metric.endswith(".py")))
