"""What a configuration holds that nobody may read: only two keys take it from the environment, and nothing shows it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.resolvers import oc

from operators.errors import ConfigError, without_secrets

STORAGE_SECRETS = ("key", "secret")
SECRET_NAME = re.compile(r"(?:^|[._])(?:key|secret|token|password)$")
MASK = "***"


def resolve(composed: DictConfig) -> dict[str, Any]:
    """The configuration as plain values.

    The secrets are taken out before anything else is resolved: no other value can name them, or read the environment.
    """
    OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)
    secrets = _take_secrets(composed)
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value | secrets if key == "storage" else value for key, value in values.items()}


def _take_secrets(composed: DictConfig) -> dict[str, Any]:
    storage = composed.get("storage")
    if not isinstance(storage, DictConfig):
        return {}
    with open_dict(storage):
        return {name: storage.pop(name) for name in STORAGE_SECRETS if name in storage}


def _read_environment(name: str, *default: str | None, _node_: Node) -> str | None:
    """`${oc.env:NAME}`; raises ConfigError for a value that is printed and stored."""
    key = _node_._get_full_key("")
    if key not in [f"storage.{name}" for name in STORAGE_SECRETS]:
        raise ConfigError(
            f"config key {key!r}: only storage.key and storage.secret take ${{oc.env:...}}, because all others are "
            "printed and stored; let the shell put the value in"
        )
    return oc.env(name, *default)


def masked(value: Any, name: str = "") -> Any:
    """A configuration to print: no secret, whatever it is called, and no credentials within an address."""
    if isinstance(value, Mapping):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, name) for inner in value]
    if value and SECRET_NAME.search(name):
        return MASK
    return without_secrets(value) if isinstance(value, str) else value


def hide(text: str, overrides: Sequence[str]) -> str:
    """A message about the command line without the secrets that stand in it."""
    pairs = [override.partition("=") for override in overrides]
    for value in (value for key, _, value in pairs if value and SECRET_NAME.search(key)):
        text = text.replace(value, MASK)
    return without_secrets(text)
