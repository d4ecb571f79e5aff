"""Converts command-line arguments to Hydra overrides, and loads functions as metrics (`metric=FILE.py:NAME`)."""

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from plumbline.jobs.defaults import collect_defaults
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.function import (
    FunctionConfig,
    FunctionOrigin,
    is_function_name,
    read_function,
    read_function_options,
    split_name,
)
from plumbline.pipelines.base.storage import StorageConfig

METRIC_KEYS = ("metric", "metrics")
"""Keys for metrics. Each job has one of these keys and accepts the other as a synonym, for one metric or a list."""
TEXT_KEYS = ("note", "compare")
"""Keys whose values are always text; a comma does not turn such a value into a list."""
LIST_SYNONYMS = {"metric": "metrics"}
"""Synonyms for keys of jobs with a list of metrics."""
SWEEP_KEYS = {
    "limit": "benchmark.limit", "images": "benchmark.images", "prompts": "benchmark.prompts", "metrics": "metric"
}  # fmt: skip
"""Short forms of keys for every job that accepts a sweep's keys."""


class UnknownKeyError(Exception):
    """Raised if the configuration lacks a key; the exception's only argument is the key."""


def expand_key(word: str, short: Mapping[str, str], first: str | None) -> str:
    """Return a command-line argument with its full key; an argument without a key is a value of the key `first`.

    Raise ConfigError for an argument without a key if `first` is None.
    """
    key, separator, value = word.partition("=")
    if not separator and not word.startswith("~"):
        if first is None:
            raise ConfigError(f"{word!r}: expected KEY=VALUE, such as store=FOLDER")
        key, value = first, word
    full = short.get(key, key)
    if key in METRIC_KEYS:
        if value.startswith("{"):
            return f"metrics={value}"  # options of metrics
        value = value if value.startswith("[") or value in ("", "null") else f"[{value}]"
    return f"{full}={value}" if separator or key == first else word


def make_override(word: str) -> str:
    """Convert an argument to a Hydra override: make `a,b` a list, and quote text that Hydra cannot parse.

    For example, Hydra cannot parse a path with brackets or equals signs. Raise ConfigError for an unclosed bracket or
    quotation mark, or for a key with a space.
    """
    parsed = _parse_override(word)
    key, separator, value = word.partition("=")
    if key in TEXT_KEYS and value[:1] not in ("'", '"') and value != "null":
        return f"{key}={_quote_value(value)}"
    if parsed is None or not key:
        quoted = f"{key}={_quote_value(value)}"
        if not key or not separator or value[:1] in tuple("[{'\"") or _parse_override(quoted) is None:
            raise ConfigError(f"{word!r} cannot be read: expected KEY=VALUE, with every bracket and quote closed")
        return quoted
    if not parsed.is_sweep_override():
        return word
    return f"{key}=[{value}]" if isinstance(parsed.value(), ChoiceSweep) else f"{key}={_quote_value(value)}"


def apply_override(config: DictConfig, override: Override) -> None:
    """Set, add or remove a key of a configuration, following Hydra's grammar for overrides.

    Raise UnknownKeyError if a key does not exist and is not being added, and ConfigError for other invalid overrides.
    """
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        raise ConfigError(f"{override.input_line}: {key!r} is not a group of choices; remove @{override.package}")
    found = OmegaConf.select(config, key, throw_on_missing=False)
    try:
        if override.is_delete():
            if found is None or value not in (None, found):
                state = "the key does not exist" if found is None else f"its value is {found}"
                raise ConfigError(f"config key {key!r} cannot be removed: {state}")
            parent, _, last = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, parent) if parent else config)[last]
        elif override.is_add() and found is not None and not isinstance(value, dict | list):
            raise ConfigError(f"config key {key!r} exists already; write {key}=VALUE, without the +")
        else:
            adds = override.is_add() or override.is_force_add()
            OmegaConf.update(config, key, value, merge=True, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise UnknownKeyError(key) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.input_line}: {str(error).splitlines()[0]}") from error


def _parse_override(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def _quote_value(value: str) -> str:
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", value)
    ending = re.search(r"\\*$", escaped)
    return f"'{escaped}{ending[0] if ending else ''}'"


def format_store_arguments(store: str, storage: StorageConfig) -> str:
    """Return the command-line arguments that specify a store, without secrets."""
    options = {"endpoint_url": storage.endpoint_url, "region": storage.region, "anon": storage.anon or None}
    words = [f"store={store}", *(f"storage.{key}={value}" for key, value in options.items() if value is not None)]
    return shlex.join(words)


def chooses_benchmark(words: Sequence[str], key: str) -> bool:
    """Return True if an argument chooses a benchmark by the group `key`, or sets one of a benchmark's sources."""
    choice = rf"({re.escape(key)}|benchmark(\.(images|prompts|generators|questions)[\w.]*)?)="
    return any(re.match(choice, word) for word in words)


def replace_functions(words: Sequence[str]) -> list[str]:
    """Return the arguments with each function in `metric=[...]` replaced by an override that makes it a metric.

    Raise ConfigError if two metrics have the same name.
    """
    return [_replace_functions(word) if word.startswith("metric=[") else word for word in words]


def _replace_functions(word: str) -> str:
    parsed = _parse_override(make_override(word))
    value = None if parsed is None or parsed.is_sweep_override() else parsed.value()
    entries = value if isinstance(value, list) else []
    metrics = [entry.text if isinstance(entry, QuotedString) else entry for entry in entries]
    if not any(map(is_function_name, metrics)):
        return word
    names = [split_name(metric)[1] if is_function_name(metric) else metric for metric in metrics]
    _check_unique_names(names)
    choices: list[Any] = []
    for metric, name in zip(metrics, names, strict=True):
        choices.append(name)
        if metric != name:  # add a choice to the group `metric`, with its options at metrics.NAME
            choices[-1] = f"function_{hashlib.sha256(metric.encode()).hexdigest()[:16]}"
            options = {**collect_defaults(FunctionConfig), "function": metric}
            ConfigStore.instance().store(group="metric", name=choices[-1], node=options, package=f"metrics.{name}")
    return f"metric=[{','.join(map(str, choices))}]"


def _check_unique_names(names: Iterable[str]) -> None:
    for name, count in Counter(map(str, names)).items():
        if count > 1:
            raise ConfigError(
                f"metric: {count} of the metrics are called {name!r}; rename the function or leave one out"
            )


def load_functions(values: Mapping[str, Any], given: Sequence[FunctionOrigin] = ()) -> dict[str, Any]:
    """Return a configuration with the code of the functions that it refers to, and of the `given` functions.

    This is the only way for a metric to get executable code. Raise ConfigError if the code cannot be loaded.
    """
    metrics = values.get("metrics")
    if not isinstance(metrics, Mapping) and not given:
        return dict(values)
    loaded = {}
    for name, options in (metrics or {}).items():
        loaded[name] = options
        if isinstance(options, Mapping) and options.get("kind") == "function":
            origin = read_function(f"metrics.{name}", str(options.get("function")), options.get("environment"))
            code = read_function_options(origin)
            loaded[name] = {**options, **code, "about": options.get("about") or code["about"]}
    _check_unique_names([*loaded, *(origin.name for origin in given)])
    return {**values, "metrics": loaded | {origin.name: read_function_options(origin) for origin in given}}
