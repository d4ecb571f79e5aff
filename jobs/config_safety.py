"""Safety of configurations: limits for users' own files, and secrets that must never appear in any output.

Only the keys in SECRETS may be set from the environment.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import Container, DictConfig, Node, OmegaConf, open_dict
from omegaconf.resolvers import oc

from plumbline.operators.base.errors import ConfigError, hide_secrets
from plumbline.operators.base.sentences import format_names

MAX_CONFIG_FILE_BYTES = 1_000_000
"""Maximum size of a file in bytes."""
MAX_CONFIG_VALUES = 10_000
"""Maximum number of keys and values in a file, counted once per alias that refers to them; our longest file has about
200.
"""
MAX_INSERTED_CHARACTERS = 1_000_000
"""Maximum number of characters that the interpolations of a configuration insert; Plumbline's own configurations insert
about 1,000.
"""
INTERPOLATION_COST = 200
"""Number of characters charged per interpolation in addition to the text that it inserts, because resolving it takes
0.2 ms.
"""
SECRET_OPTIONS = ("storage.key", "storage.secret", "nightly.webhook")
"""The keys that may be set from the environment."""
SECRET_NAME_PATTERN = re.compile(r"(?:^|[._])(?:key|secret|token|password|webhook)$")
SECRET_VARIABLE_PATTERN = re.compile(r"(?:^|_)(?:KEY|SECRET|TOKEN|PASSWORD)$")
MIN_SECRET_CHARACTERS = 6
"""Minimum number of characters of a secret for it to be masked in texts; shorter strings occur in ordinary text."""
SECRET_MASK = "***"
_PATCH_LOCK = threading.Lock()


class _TooMuchInserted(BaseException):
    """Signal that aborts resolving a configuration; a BaseException, because OmegaConf would replace an Exception."""


def check_files(config_dir: str) -> None:
    """Raise ConfigError if a YAML file has too many bytes, or too many values when its aliases are expanded."""
    folder = Path(config_dir)
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        if not file.is_file():
            continue
        if file.stat().st_size > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(
                f"{file}: expected YAML of at most {MAX_CONFIG_FILE_BYTES} bytes, found more; correct the file"
            )
        try:
            n_values = _count_values(yaml.compose(file.read_bytes(), yaml.SafeLoader), {})
        except (yaml.YAMLError, ValueError, RecursionError):
            continue  # Hydra reports it if the file is chosen
        if n_values > MAX_CONFIG_VALUES:
            raise ConfigError(
                f"{file}: expected YAML of at most {MAX_CONFIG_VALUES} keys and values, counted once per alias, "
                "found more; correct the file"
            )


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return the number of values in a YAML node, counting a value once for each alias that refers to it."""
    if id(node) not in counts:
        counts[id(node)] = MAX_CONFIG_VALUES + 1  # for a node that contains itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        nodes = [each for entry in inner for each in (entry if isinstance(entry, tuple) else (entry,))]
        counts[id(node)] = 1 + sum(_count_values(each, counts) for each in nodes)
    return counts[id(node)]


@contextmanager
def limit_interpolations(config_dir: str | None) -> Iterator[None]:
    """Raise ConfigError if interpolations that are resolved within the context insert too much text.

    OmegaConf has no limit: it resolves a value again for each `${...}` that refers to it. If each value in a chain
    refers to the previous one twice, the text doubles with every value.
    """
    # every interpolation goes through one of these two methods
    follow, call = Container._resolve_node_interpolation, Container._evaluate_custom_resolver
    thread, inserted = threading.get_ident(), 0

    def add_inserted(length: int, node: Node) -> None:
        nonlocal inserted
        inserted += (INTERPOLATION_COST + length) * (thread == threading.get_ident())
        if inserted > MAX_INSERTED_CHARACTERS:
            raise _TooMuchInserted(node._get_full_key(None))

    def follow_and_count(self: Container, inter_key: str, memo: set[int] | None) -> Node:
        target = follow(self, inter_key, memo)
        add_inserted(_count_characters(target), target)
        return target

    def call_and_count(
        self: Container, key: Any, node: Node, inter_type: str, inter_args: Any, inter_args_str: Any
    ) -> Any:
        add_inserted(_count_characters(list(inter_args)), node)
        value = call(self, key, node, inter_type, inter_args, inter_args_str)
        add_inserted(_count_characters(value), node)
        return value

    patched: Any = Container
    with _PATCH_LOCK:
        patched._resolve_node_interpolation, patched._evaluate_custom_resolver = follow_and_count, call_and_count
        try:
            yield
        except _TooMuchInserted as error:
            raise ConfigError(
                f"config key {str(error)!r}: expected interpolations that insert at most "
                f"{MAX_INSERTED_CHARACTERS} characters, counted once per ${{...}}, found more; "
                f"correct {config_dir or 'the command line'}"
            ) from None
        finally:
            patched._resolve_node_interpolation, patched._evaluate_custom_resolver = follow, call


def _count_characters(value: Any) -> int:
    content = value._value() if isinstance(value, Node) else value
    if isinstance(content, dict):
        return sum(len(str(key)) + _count_characters(inner) for key, inner in content.items())
    if isinstance(content, list):
        return sum(1 + _count_characters(inner) for inner in content)
    return _count_characters(content) if isinstance(content, Node) else len(str(content))


def resolve_values(composed: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain values."""
    OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)
    # take the secrets out before the rest is resolved, so that no other value can refer to them
    secrets: dict[str, dict[str, Any]] = {}
    for section, name in (key.split(".") for key in SECRET_OPTIONS):
        options = composed.get(section)
        if isinstance(options, DictConfig) and name in options:
            with open_dict(options):
                secrets.setdefault(section, {})[name] = options.pop(name)
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value | secrets[key] if key in secrets else value for key, value in values.items()}


def _read_environment(name: str, *default: str | None, _node_: Node) -> str | None:
    """Resolve `${oc.env:NAME}`; raise ConfigError if it is used for a key that is printed and stored."""
    key = _node_._get_full_key("")
    if key not in SECRET_OPTIONS:
        raise ConfigError(
            f"config key {key!r}: only {format_names(SECRET_OPTIONS)} may use ${{oc.env:...}}, because all other "
            f"keys are "
            "printed and stored; let the shell insert the value"
        )
    return oc.env(name, *default)


def mask_secrets(value: Any, name: str = "") -> Any:
    """Return a configuration for printing: secret values are masked, and credentials in addresses are hidden."""
    if isinstance(value, Mapping):
        return {key: mask_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask_secrets(inner, name) for inner in value]
    if value and SECRET_NAME_PATTERN.search(name):
        return SECRET_MASK
    return hide_secrets(value) if isinstance(value, str) else value


def list_secrets(configured: Iterable[str | None]) -> list[str]:
    """Return the secrets to remove from texts: those configured, and environment variables whose names suggest one."""
    values = [value for name, value in os.environ.items() if SECRET_VARIABLE_PATTERN.search(name)]
    found = {value for value in (*values, *configured) if value and len(value) >= MIN_SECRET_CHARACTERS}
    return sorted(found, key=len, reverse=True)  # a secret may begin with another secret


def remove_secrets(secrets: Sequence[str], text: str) -> str:
    """Return a text with these secrets masked, and with credentials removed from addresses."""
    for secret in secrets:
        text = text.replace(secret, SECRET_MASK)
    return hide_secrets(text)


def mask_override_secrets(text: str, overrides: Sequence[str]) -> str:
    """Return a message about a command line, with the secrets in its overrides masked."""
    pairs = [override.partition("=") for override in overrides]
    for value in (value for key, _, value in pairs if value and SECRET_NAME_PATTERN.search(key)):
        text = text.replace(value, SECRET_MASK)
    return hide_secrets(text)
