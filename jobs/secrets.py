"""What a configuration holds that nobody may read: only two keys take it from the environment, and nothing shows it."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.resolvers import oc

from plumbline.operators.base.errors import ConfigError, without_secrets
from plumbline.operators.base.sentences import names

SECRETS = ("storage.key", "storage.secret", "nightly.webhook")
"""The keys that may come from the environment."""
SECRET_NAME = re.compile(r"(?:^|[._])(?:key|secret|token|password|webhook)$")
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:KEY|SECRET|TOKEN|PASSWORD)$")
SHORTEST = 6
"""Characters of a secret that is looked for in a text; shorter ones stand in any text."""
MASK = "***"


def resolve(composed: DictConfig) -> dict[str, Any]:
    """The configuration as plain values.

    The secrets are taken out before anything else is resolved: no other value can name them, or read the environment.
    """
    OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)
    secrets = _take_secrets(composed)
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value | secrets[key] if key in secrets else value for key, value in values.items()}


def _take_secrets(composed: DictConfig) -> dict[str, dict[str, Any]]:
    """By section, its secrets."""
    taken: dict[str, dict[str, Any]] = {}
    for section, name in (key.split(".") for key in SECRETS):
        options = composed.get(section)
        if isinstance(options, DictConfig) and name in options:
            with open_dict(options):
                taken.setdefault(section, {})[name] = options.pop(name)
    return taken


def _read_environment(name: str, *default: str | None, _node_: Node) -> str | None:
    """`${oc.env:NAME}`; raises ConfigError for a value that is printed and stored."""
    key = _node_._get_full_key("")
    if key not in SECRETS:
        raise ConfigError(
            f"config key {key!r}: only {names(SECRETS)} take ${{oc.env:...}}, because all others are "
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


def known_secrets(configured: Iterable[str | None]) -> list[str]:
    """What no text may hold: the values of the environment's secrets, by their names, and those configured."""
    values = [value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)]
    found = {value for value in (*values, *configured) if value and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)  # one may begin with another


def without(secrets: Sequence[str], text: str) -> str:
    """A text without these secrets, and without the credentials of any address."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return without_secrets(text)


def hide(text: str, overrides: Sequence[str]) -> str:
    """A message about the command line without the secrets that stand in it."""
    pairs = [override.partition("=") for override in overrides]
    for value in (value for key, _, value in pairs if value and SECRET_NAME.search(key)):
        text = text.replace(value, MASK)
    return without_secrets(text)
