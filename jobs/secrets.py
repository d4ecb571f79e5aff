"""Secrets of a configuration: only SECRETS may come from the environment, and no output shows them."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.resolvers import oc

from plumbline.operators.base.errors import ConfigError, hide_secrets
from plumbline.operators.base.sentences import names

SECRETS = ("storage.key", "storage.secret", "nightly.webhook")
"""The keys that may come from the environment."""
SECRET_NAME = re.compile(r"(?:^|[._])(?:key|secret|token|password|webhook)$")
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:KEY|SECRET|TOKEN|PASSWORD)$")
MIN_SECRET = 6
"""Characters of a secret that is masked in texts; shorter ones occur in ordinary text."""
MASK = "***"


def resolve(composed: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain values.

    The secrets are taken out before anything else is resolved, so that no other value can refer to them, or read the
    environment.
    """
    OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)
    secrets = _take_secrets(composed)
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value | secrets[key] if key in secrets else value for key, value in values.items()}


def _take_secrets(composed: DictConfig) -> dict[str, dict[str, Any]]:
    """Remove and return the secrets by section and key."""
    taken: dict[str, dict[str, Any]] = {}
    for section, name in (key.split(".") for key in SECRETS):
        options = composed.get(section)
        if isinstance(options, DictConfig) and name in options:
            with open_dict(options):
                taken.setdefault(section, {})[name] = options.pop(name)
    return taken


def _read_environment(name: str, *default: str | None, _node_: Node) -> str | None:
    """Resolve `${oc.env:NAME}`; raise ConfigError for a key that is printed and stored."""
    key = _node_._get_full_key("")
    if key not in SECRETS:
        raise ConfigError(
            f"config key {key!r}: only {names(SECRETS)} take ${{oc.env:...}}, because all others are "
            "printed and stored; let the shell put the value in"
        )
    return oc.env(name, *default)


def mask(value: Any, name: str = "") -> Any:
    """Return a configuration for printing: secrets are masked by key, credentials in addresses are hidden."""
    if isinstance(value, Mapping):
        return {key: mask(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask(inner, name) for inner in value]
    if value and SECRET_NAME.search(name):
        return MASK
    return hide_secrets(value) if isinstance(value, str) else value


def known_secrets(configured: Iterable[str | None]) -> list[str]:
    """Return the secrets to remove from texts: those in the environment, by variable name, and the configured ones."""
    values = [value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)]
    found = {value for value in (*values, *configured) if value and len(value) >= MIN_SECRET}
    return sorted(found, key=len, reverse=True)  # a secret may begin with another secret


def remove_secrets(secrets: Sequence[str], text: str) -> str:
    """Return a text with these secrets masked, and without credentials in addresses."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return hide_secrets(text)


def hide_overrides(text: str, overrides: Sequence[str]) -> str:
    """Return a message about a command line with the secrets of its overrides masked."""
    pairs = [override.partition("=") for override in overrides]
    for value in (value for key, _, value in pairs if value and SECRET_NAME.search(key)):
        text = text.replace(value, MASK)
    return hide_secrets(text)
