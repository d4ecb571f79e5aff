"""Limits of a user's own configuration files."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import Container, Node

from plumbline.operators.base.errors import ConfigError

MAX_FILE = 1_000_000
"""Bytes of a file."""
MAX_VALUES = 10_000
"""Keys and values of a file, counted again at every alias; our longest file has about 200."""
MAX_INSERTED = 1_000_000
"""Characters that the interpolations of a configuration insert; ours insert about 1,000."""
REFERENCE_COST = 200
"""Characters that an interpolation counts as, in addition to the text that it inserts: following it takes 0.2 ms."""
_patching = threading.Lock()


class _TooMuchInserted(BaseException):
    """Ends the resolution of a configuration; OmegaConf would replace an Exception with its own, or with a default."""


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
            continue  # Hydra reports it if the file is chosen
        if n_values > MAX_VALUES:
            raise ConfigError(
                f"{file}: expected YAML of at most {MAX_VALUES} keys and values, each as often as aliases name it, "
                "found more; correct the file"
            )


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return the number of values in a YAML node, each as often as it is named."""
    if id(node) not in counts:
        counts[id(node)] = MAX_VALUES + 1  # for a node that contains itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in each)
    return counts[id(node)]


@contextmanager
def limit_interpolations(config_dir: str | None) -> Iterator[None]:
    """Raise ConfigError when the interpolations that the body resolves insert too much text.

    OmegaConf resolves a value again for each `${...}` that names it, so a chain of values that each name the previous
    value twice doubles with every value. It has no limit of its own. Every interpolation goes through one of the two
    methods that are replaced here.
    """
    follow, call = Container._resolve_node_interpolation, Container._evaluate_custom_resolver
    thread, inserted = threading.get_ident(), 0

    def count(length: int, node: Node) -> None:
        nonlocal inserted
        inserted += (REFERENCE_COST + length) * (thread == threading.get_ident())
        if inserted > MAX_INSERTED:
            raise _TooMuchInserted(node._get_full_key(None))

    def counted_follow(self: Container, inter_key: str, memo: set[int] | None) -> Node:
        target = follow(self, inter_key, memo)
        count(_length(target), target)
        return target

    def counted_call(
        self: Container, key: Any, node: Node, inter_type: str, inter_args: Any, inter_args_str: Any
    ) -> Any:
        count(_length(list(inter_args)), node)
        value = call(self, key, node, inter_type, inter_args, inter_args_str)
        count(_length(value), node)
        return value

    with _patching:
        _replace_methods(counted_follow, counted_call)
        try:
            yield
        except _TooMuchInserted as error:
            raise ConfigError(
                f"config key {str(error)!r}: expected interpolations that insert at most {MAX_INSERTED} characters, "
                f"each value as often as ${{...}} names it, found more; correct {config_dir or 'the command line'}"
            ) from None
        finally:
            _replace_methods(follow, call)


def _replace_methods(follow: Any, call: Any) -> None:
    for name, method in {"_resolve_node_interpolation": follow, "_evaluate_custom_resolver": call}.items():
        setattr(Container, name, method)


def _length(value: Any) -> int:
    """Return the number of characters in a value and all values in it."""
    content = value._value() if isinstance(value, Node) else value
    if isinstance(content, dict):
        return sum(len(str(key)) + _length(inner) for key, inner in content.items())
    if isinstance(content, list):
        return sum(1 + _length(inner) for inner in content)
    return _length(content) if isinstance(content, Node) else len(str(content))
