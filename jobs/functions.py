"""Functions as metrics: `metric=FILE.py:NAME` on a command line, `kind: function` in a file, a function in Python."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore

from plumbline.jobs.defaults import defaults_of
from plumbline.jobs.overrides import list_entries
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.function import (
    FunctionConfig,
    Origin,
    is_function_name,
    read_function_options,
    read_source,
)


def choose_functions(words: Sequence[str]) -> list[str]:
    """Return the overrides with a choice instead of each function that `metric=` names; the code is not run yet.

    Raise ConfigError if there is no such file or module, or if two metrics have the same name.
    """
    return [_choose(word) if word.startswith("metric=[") else word for word in words]


def _choose(word: str) -> str:
    metrics = list_entries(word)
    if not any(map(is_function_name, metrics)):
        return word
    named = [(metric, read_source(metric).name if is_function_name(metric) else metric) for metric in metrics]
    check_names(name for _, name in named)
    return f"metric=[{','.join(metric if metric == name else _register(metric, name) for metric, name in named)}]"


def _register(metric: str, name: str) -> str:
    """Add a choice for a function to the group `metric`, and return its name; its options are below metrics.NAME."""
    choice = f"function_{hashlib.sha256(metric.encode()).hexdigest()[:16]}"
    options = {**defaults_of(FunctionConfig), "function": metric}
    ConfigStore.instance().store(group="metric", name=choice, node=options, package=f"metrics.{name}")
    return choice


def check_names(names: Iterable[str]) -> None:
    """Raise ConfigError if two of the chosen metrics have the same name."""
    for name, count in Counter(map(str, names)).items():
        if count > 1:
            raise ConfigError(
                f"metric: {count} of the metrics are called {name!r}; rename the function or leave one out"
            )


def load_functions(values: Mapping[str, Any], given: Sequence[Origin] = ()) -> dict[str, Any]:
    """Return the values of a configuration with the code of the functions that it names, and of those `given`.

    This is the only place where a metric gets code that can be run. Raise ConfigError if the code cannot be loaded.
    """
    metrics = values.get("metrics")
    if not isinstance(metrics, Mapping) and not given:
        return dict(values)
    read = {name: _read_code(options) for name, options in (metrics or {}).items()}
    check_names([*read, *(origin.name for origin in given)])
    return {**values, "metrics": read | {origin.name: read_function_options(origin) for origin in given}}


def _read_code(options: Any) -> Any:
    if not isinstance(options, Mapping) or options.get("kind") != "function":
        return options
    read = read_function_options(read_source(str(options.get("function"))))
    return {**options, **read, "about": options.get("about") or read["about"]}
