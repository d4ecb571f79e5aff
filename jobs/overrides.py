"""What people type after a job's name, as the overrides that Hydra reads."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig

OF_METRICS = ("metric", "metrics")
"""A job has one of these keys; the other one is as right, and so is one name without brackets, or several."""
LISTS = {"metric": "metrics"}
"""What may be written for longer keys of a job that has a list of metrics."""
OF_SWEEPS = {
    "limit": "benchmark.limit", "images": "benchmark.images", "prompts": "benchmark.prompts", "metrics": "metric"
}  # fmt: skip
"""The same of every job that takes what sweeps take."""


def in_full(word: str, short: Mapping[str, str], first: str | None) -> str:
    """A word with its whole key: a short key is written out, and a word alone is the value of the job's `first` key.

    Raises ConfigError for a word alone where the job has no such key.
    """
    key, separator, value = word.partition("=")
    if not separator and not word.startswith("~"):
        if first is None:
            raise ConfigError(f"{word!r}: expected KEY=VALUE, such as store=FOLDER")
        key, value = first, word
    full = short.get(key, key)
    if key in OF_METRICS:
        if value.startswith("{"):
            return f"metrics={value}"  # their options
        value = value if value.startswith("[") or value in ("", "null") else f"[{value}]"
    return f"{full}={value}" if separator or key == first else word


TEXTS = ("note", "compare")
"""Keys whose values are text, whatever is in it: a comma makes no list of them."""


def as_override(word: str) -> str:
    """A word as Hydra takes it: `a,b` is a list, and text that its grammar has no room for is quoted.

    Paths with brackets, signs of equality or letters beyond ASCII are such text. Raises ConfigError for what is none:
    a bracket or a quotation mark that is not closed, or a key with a space in it.
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


def _parse(word: str) -> Override | None:
    """None for what Hydra cannot read."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def _quote(value: str) -> str:
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", value)
    ending = re.search(r"\\*$", escaped)
    return f"'{escaped}{ending[0] if ending else ''}'"


def name_store(store: str, storage: StorageConfig) -> str:
    """Return the words that name a store on another command line, without its secrets."""
    reached = {"endpoint_url": storage.endpoint_url, "region": storage.region, "anon": storage.anon or None}
    words = [f"store={store}", *(f"storage.{key}={value}" for key, value in reached.items() if value is not None)]
    return shlex.join(words)


def chooses(words: Sequence[str], key: str) -> bool:
    """Whether some word says what a sweep is of: its choice of a group, or where its prompts or images are."""
    place = rf"({re.escape(key)}|benchmark(\.(images|prompts|generators|questions)[\w.]*)?)="
    return any(re.match(place, word) for word in words)


def list_entries(word: str) -> list[Any]:
    """Return the entries of a word whose value is a list; none if it has another value, or cannot be read."""
    parsed = _parse(as_override(word))
    value = None if parsed is None or parsed.is_sweep_override() else parsed.value()
    listed = value if isinstance(value, list) else []
    return [entry.text if isinstance(entry, QuotedString) else entry for entry in listed]
