"""Reads the `environment` option of a function metric."""

from dataclasses import dataclass
from typing import Any

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.environments.environments import EnvironmentConfig, resolve_environment
from plumbline.plugins.environments.function import EnvironmentFunction, make_environment_function


@dataclass(frozen=True)
class _WithEnvironment:
    """Wrapper that has the environment as a field, so that error messages contain the key `environment`."""

    environment: EnvironmentConfig


def read_environment_function(key: str, named: str, options: Any) -> EnvironmentFunction:
    """Return a function with its environment, whose packages are resolved.

    Args:
        key: Key of the metric, for messages.
        named: The function: FILE.py:NAME, or PACKAGE.MODULE:NAME of one of the environment's packages.
        options: The value of the `environment` option.

    Raises:
        ConfigError: The environment is invalid or cannot be resolved, or the file cannot be read.
    """
    try:
        environment = resolve_environment(read_config({"environment": options}, _WithEnvironment).environment)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    return make_environment_function(named, environment)
