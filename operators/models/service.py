"""A model that a service runs, as its user configures it: its address, its pace, its prices, and where its key is."""

import math
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from plumbline.operators.errors import ConfigError
from plumbline.operators.models.calls import Usage
from plumbline.operators.models.model import ModelConfig, Thoughts, check_least

PER = 1_000_000
"""Tokens that a price is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """What a service asks for a million tokens; nothing here knows a vendor's prices."""

    read: float
    written: float
    cached: float | None = None
    """Of tokens read that the service had in its prefix cache; null is as the others."""
    currency: str = "USD"
    read_per_call: int = 1000
    """Tokens that a call is taken to read and to write in an estimate, until a run in the store has told."""
    written_per_call: int = 250

    def __post_init__(self) -> None:
        for name in ("read", "written", "cached", "read_per_call", "written_per_call"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"model prices.{name}: expected 0 or more, got {value}")

    def taken(self) -> Usage:
        """What a call is taken to take."""
        return Usage(1, self.read_per_call, 0, self.written_per_call)

    def cost(self, usage: Usage) -> float:
        """What calls came to, in the currency."""
        cached = self.read if self.cached is None else self.cached
        read = (usage.prompt_tokens - usage.cached_tokens) * self.read + usage.cached_tokens * cached
        return (read + usage.new_tokens * self.written) / PER


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceModel(ModelConfig):
    """A model at an OpenAI-compatible endpoint."""

    endpoint: str | None = None
    """Base URL of an OpenAI-compatible service, such as http://127.0.0.1:8000/v1; null takes OPENAI_BASE_URL, or else
    OpenAI's own."""
    concurrency: int = 8
    """Requests to the endpoint that may be under way at once in one worker."""
    max_retries: int = 6
    """How often a request to the endpoint is tried again, waiting longer each time, and as long as the service asks."""
    image_format: Literal["png", "jpeg"] = "png"
    """How images are sent to the endpoint: `png` keeps every pixel; `jpeg`, at quality 95, is a fifth of the size."""
    timeout: float = 300.0
    """Seconds that one attempt of a request to the endpoint may take."""
    requests_per_minute: float | None = None
    """How many requests, those that are tried again included, one worker makes in a minute; null sets no bound."""
    thinking: Thoughts = "refused"
    """`allowed`: the model may think before it replies, and the reply is what follows the thought. `refused`: the
    metric's max_tokens are for both."""
    thinking_tokens: int = 4096
    """Of `thinking=allowed`: tokens of the longest thought; one that is longer is an error of its row."""
    prices: Prices | None = None
    """What a million of the endpoint's tokens cost, for the estimates and totals of a sweep: {read: 2.5, written: 10,
    cached: 1.25, currency: USD}; null leaves costs out."""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the endpoint's key; the key itself is never configured."""

    def check_options(self) -> None:
        check_least("concurrency", self.concurrency, 1)
        check_least("max_retries", self.max_retries, 0)
        check_least("thinking_tokens", self.thinking_tokens, 1)
        for name, number in (("timeout", self.timeout), ("requests_per_minute", self.requests_per_minute)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ConfigError(f"model {name}: expected more than 0, got {number}")
        check_endpoint(self.endpoint)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable) is None:
            raise ConfigError(
                "model key_variable: expected the name of an environment variable, not what it holds; "
                "put the key into that variable"
            )


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
