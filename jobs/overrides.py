"""Conversion of command-line words to Hydra overrides."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig

METRIC_KEYS = ("metric", "metrics")
"""A job has one of these keys and also accepts the other, with a single name or a list."""
LISTS = {"metric": "metrics"}
"""Short forms of keys for a job that has a list of metrics."""
SWEEP_KEYS = {
    "limit": "benchmark.limit", "images": "benchmark.images", "prompts": "benchmark.prompts", "metrics": "metric"
}  # fmt: skip
"""Short forms of keys for every job that accepts the keys of sweeps."""


class UnknownKeyError(Exception):
    """A configuration has no key of this name, which is the only argument."""


def expand_key(word: str, short: Mapping[str, str], first: str | None) -> str:
    """Return a word with its full key: short keys are expanded, and a word without a key is the `first` key's value.

    Raise ConfigError for a word without a key if the job has no `first` key.
    """
    key, separator, value = word.partition("=")
    if not separator and not word.startswith("~"):
        if first is None:
            raise ConfigError(f"{word!r}: expected KEY=VALUE, such as store=FOLDER")
        key, value = first, word
    full = short.get(key, key)
    if key in METRIC_KEYS:
        if value.startswith("{"):
            return f"metrics={value}"  # their options
        value = value if value.startswith("[") or value in ("", "null") else f"[{value}]"
    return f"{full}={value}" if separator or key == first else word


TEXTS = ("note", "compare")
"""Keys whose values are always text: a comma does not make a list."""


def to_override(word: str) -> str:
    """Return a word as a Hydra override: `a,b` becomes a list, and text that Hydra's grammar does not allow is quoted.

    Such text is a path with brackets, equals signs or letters beyond ASCII. Raise ConfigError for an unclosed bracket
    or quotation mark, or a key with a space.
    """
    parsed = _parse(word)
    key, separator, value = word.partition("=")
    if key in TEXTS and value[:1] not in ("'", '"') and value != "null":
        return f"{key}={_quote(value)}"
    if parsed is None or not key:
        quoted = f"{key}={_quote(value)}"
        if not key or not separator or value[:1] in tuple("[{'\"") or _parse(quoted) is None:
            raise ConfigError(f"{word!r} cannot be read: expected KEY=VALUE, with every bracket and quote closed")
        return quoted
    if not parsed.is_sweep_override():
        return word
    return f"{key}=[{value}]" if isinstance(parsed.value(), ChoiceSweep) else f"{key}={_quote(value)}"


def apply_override(config: DictConfig, override: Override) -> None:
    """Set, add or remove a key of a configuration, as Hydra's grammar of overrides describes.

    Raise UnknownKeyError for a key that does not exist and is not to be added, and ConfigError for any other override
    that does not fit.
    """
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        raise ConfigError(f"{override.input_line}: there is no group of choices {key!r}; remove @{override.package}")
    found = OmegaConf.select(config, key, throw_on_missing=False)
    try:
        if override.is_delete():
            if found is None or value not in (None, found):
                state = "there is no such key" if found is None else f"its value is {found}"
                raise ConfigError(f"config key {key!r} cannot be removed: {state}")
            parent, _, last = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, parent) if parent else config)[last]
        elif override.is_add() and found is not None and not isinstance(value, dict | list):
            raise ConfigError(f"config key {key!r} is there already; write {key}=VALUE, without the +")
        else:
            adds = override.is_add() or override.is_force_add()
            OmegaConf.update(config, key, value, merge=True, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise UnknownKeyError(key) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.input_line}: {str(error).splitlines()[0]}") from error


def _parse(word: str) -> Override | None:
    """Parse an override; return None if Hydra cannot read it."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def _quote(value: str) -> str:
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", value)
    ending = re.search(r"\\*$", escaped)
    return f"'{escaped}{ending[0] if ending else ''}'"


def name_store(store: str, storage: StorageConfig) -> str:
    """Return the words that name a store on a command line, without secrets."""
    reached = {"endpoint_url": storage.endpoint_url, "region": storage.region, "anon": storage.anon or None}
    words = [f"store={store}", *(f"storage.{key}={value}" for key, value in reached.items() if value is not None)]
    return shlex.join(words)


def chooses_benchmark(words: Sequence[str], key: str) -> bool:
    """Return True if a word chooses the sweep: by the group `key`, or by its prompts, images or questions."""
    place = rf"({re.escape(key)}|benchmark(\.(images|prompts|generators|questions)[\w.]*)?)="
    return any(re.match(place, word) for word in words)


def list_entries(word: str) -> list[Any]:
    """Return the entries of a word whose value is a list; none if it has another value, or cannot be read."""
    parsed = _parse(to_override(word))
    value = None if parsed is None or parsed.is_sweep_override() else parsed.value()
    entries = value if isinstance(value, list) else []
    return [entry.text if isinstance(entry, QuotedString) else entry for entry in entries]
