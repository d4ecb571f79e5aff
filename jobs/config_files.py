"""A user's own configuration files, and their limits."""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from plumbline.operators.errors import ConfigError

MAX_FILE = 1_000_000
"""Bytes."""
MAX_VALUES = 10_000
"""Keys and values of a file, where those behind an alias count each time; our longest file has about 200."""


def check_files(config_dir: str) -> None:
    """Raise ConfigError for a choice whose file is too large, or becomes so because its aliases repeat each other."""
    folder = Path(config_dir)
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        if not file.is_file():
            continue
        if file.stat().st_size > MAX_FILE:
            raise ConfigError(f"{file}: expected YAML of at most {MAX_FILE} bytes, found more; correct the file")
        try:
            n_values = _count_values(yaml.compose(file.read_bytes(), yaml.SafeLoader), {})
        except (yaml.YAMLError, ValueError, RecursionError):
            continue  # Hydra says so if the file is chosen
        if n_values > MAX_VALUES:
            raise ConfigError(
                f"{file}: expected YAML of at most {MAX_VALUES} keys and values, each as often as aliases name it, "
                "found more; correct the file"
            )


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return the number of values in a YAML node, each as often as it is named."""
    if id(node) not in counts:
        counts[id(node)] = MAX_VALUES + 1  # of a node inside itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in each)
    return counts[id(node)]
