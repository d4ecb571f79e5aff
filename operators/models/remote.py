"""A model behind an address: what is known of it, and which addresses are taken."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from operators.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteModel:
    """A model that a service runs."""

    name: str
    """As the service calls it."""
    endpoint: str | None
    """The service's address; None is the family's own."""
    concurrency: int
    max_retries: int
    key_variable: str
    """The environment variable that every worker reads the key from."""

    def semantic(self) -> dict[str, Any]:
        """The part that can change a result, for the cells' keys."""
        return {"model": self.name, "endpoint": (self.endpoint or "").rstrip("/") or None}


def check_endpoint(endpoint: str | None) -> None:
    """Raises ConfigError for an address that is not one, or that holds a secret, which is not repeated."""
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("model endpoint: expected an address such as https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "model endpoint: expected an address without credentials or query; "
            "put the key into the environment variable that key_variable names"
        )


def check_key_variable(name: str) -> None:
    """Raises ConfigError for what cannot be a variable's name, and may be a key, which is not repeated."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ConfigError(
            "model key_variable: expected the name of an environment variable, not what it holds; "
            "put the key into that variable"
        )
