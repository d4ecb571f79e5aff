"""Functions that run in an environment of their own. Metrics use them like the functions of metrics/function.py."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from PIL import Image

from plumbline.operators.base.errors import REMEDIES_BY_KIND, ConfigError, RowError, UnprocessableRowError
from plumbline.operators.metrics.function import (
    MODULE_NAME_PATTERN,
    FunctionDeclaration,
    FunctionDescription,
    ImageFunction,
    SourceFunction,
    check_parameters,
    make_missing_function_error,
    metric,
    read_source,
    split_name,
)
from plumbline.operators.metrics.user_code import DECLARATION_ATTRIBUTE
from plumbline.plugins.environments.environments import Environment, EnvironmentFailed
from plumbline.plugins.environments.worker import Worker, WorkerDied


class EnvironmentFunction(NamedTuple):
    """A function that runs in its own environment, defined by a Source or by a package of the environment."""

    name: str
    location: str
    environment: Environment
    source: SourceFunction | None
    """Text of the file that defines the function; None if a package of the environment defines it."""

    @property
    def file(self) -> str | None:
        return None if self.source is None else self.source.file

    @property
    def digest(self) -> str:
        """Digest of the source text or, for a module of a package, of the module's name.

        The versions of the packages are in the cells' keys, so the digest need not cover them.
        """
        return hashlib.sha256(self.location.encode()).hexdigest()[:16] if self.source is None else self.source.digest

    @property
    def packages(self) -> tuple[str, ...]:
        return (f"python=={self.environment.python_version}", *self.environment.pins)

    def describe(self) -> FunctionDescription:
        """Load the function in its environment and describe it; raise ConfigError if it cannot be used."""
        return _load_description(self)

    def open(self, *, batches: bool) -> ImageFunction:
        return partial(_call_worker, self.make_worker(), f"{self.name} of {self.location}", batches)

    def make_worker(self) -> Worker:
        text, file = (None, "") if self.source is None else (self.source.text, self.source.file)
        return Worker(self.environment, {"name": self.name, "location": self.location, "text": text, "file": file})


@lru_cache(maxsize=64)
def _load_description(function: EnvironmentFunction) -> FunctionDescription:
    """Load a function in a worker and return its description; raise ConfigError if it cannot be used.

    The description is cached, because a command plans several times, and loading takes seconds.
    """
    worker = function.make_worker()
    try:
        found = worker.describe()
    except WorkerDied as error:
        raise ConfigError(
            f"metric {function.location}: {error} while being loaded; correct the file or packages"
        ) from error
    except EnvironmentFailed as error:
        raise ConfigError(f"metric {function.location}: environment: {error}") from error
    finally:
        worker.stop()
    if "raised" in found:
        raise ConfigError(f"metric {function.location}: {found['raised']}; correct the file or environment.packages")
    if "functions" in found:
        raise make_missing_function_error(function.location, function.name, found["functions"])
    check_parameters(function.location, function.name, found["other_parameters"])
    declared = found["declared"] or FunctionDeclaration()
    checked = metric(**dict(zip(FunctionDeclaration._fields, declared, strict=True)))(lambda: None)
    return FunctionDescription(getattr(checked, DECLARATION_ATTRIBUTE), str(found["about"]))


def _call_worker(
    worker: Worker, where: str, batches: bool, images: Sequence[Image.Image], texts: Sequence[str]
) -> list[Any]:
    """Return the function's value for each image; raise UnprocessableRowError if the worker returns an error."""
    try:
        reply = worker.call(images, texts, batches=batches)
    except EnvironmentFailed as error:
        message = f"the environment of {where} could not be made: {error}"
        raise UnprocessableRowError(RowError("environment_failed", message, retryable=True)) from error
    except WorkerDied as error:
        message = f"the worker of {where} {error}; {REMEDIES_BY_KIND['worker_died']}"
        raise UnprocessableRowError(RowError("worker_died", message, retryable=True)) from error
    if "raised" in reply:
        message = f"{where} raised {reply['raised']}; correct the function"
        raise UnprocessableRowError(RowError("function_failed", message, retryable=True))
    return list(reply["values"])


def make_environment_function(reference: str, environment: Environment) -> EnvironmentFunction:
    """Return the function named by a reference of the form FILE.py:NAME or PACKAGE.MODULE:NAME.

    Raises ConfigError if the file cannot be read.
    """
    location, name = split_name(reference)
    is_module = MODULE_NAME_PATTERN.fullmatch(location) is not None and not location.endswith(".py")
    return EnvironmentFunction(name, location, environment, None if is_module else read_source(reference))
