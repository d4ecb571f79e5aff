"""The table of sinks: each is `publish` in the file of its name here, whose library is an extra of its name."""

from importlib import import_module

from plumbline.operators.errors import ConfigError, install
from plumbline.pipelines.sinks.sink import Publish

NAMES = ("mlflow", "wandb")


def publisher(name: str) -> Publish:
    """How a sink is told of a run; raises ConfigError where its library is not installed."""
    try:
        publish: Publish = import_module(f"{__name__}.{name}").publish
    except ImportError as error:
        raise ConfigError(f"sink={name}: {error}; {install(name)}") from error
    return publish
