"""A model that a service runs, as its user configures it: its address, its pace, its prices, and where its key is."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from plumbline.operators.base.bounds import AboveZero, Checked, Natural, NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.engines.reading import READING, READING_TOKENS
from plumbline.operators.models.model import ModelConfig, Thoughts

PER = 1_000_000
"""Tokens that a price is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(Checked):
    """What a service asks for a million tokens; nothing here knows a vendor's prices."""

    section: ClassVar[str] = "model prices."
    read: NotNegative
    written: NotNegative
    cached: NotNegative | None = None
    """Of tokens read that the service had in its prefix cache; null is as the others."""
    currency: str = "USD"
    read_per_call: Natural = 1000
    """Tokens that a call is taken to read and to write in an estimate, until a run in the store has told."""
    written_per_call: Natural = 250

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
    concurrency: Positive = 8
    """Requests to the endpoint that may be under way at once in one worker."""
    max_retries: Natural = 6
    """How often a request to the endpoint is tried again, waiting longer each time, and as long as the service asks."""
    image_format: Literal["png", "jpeg"] = "png"
    """How images are sent to the endpoint: `png` keeps every pixel; `jpeg`, at quality 95, is a fifth of the size."""
    reading: str = READING
    """What it is told where it reads the text in images (`ocr`)."""
    reading_tokens: Positive = READING_TOKENS
    """Of a reading, which is cut there."""
    timeout: AboveZero = 300.0
    """Seconds that one attempt of a request to the endpoint may take."""
    requests_per_minute: AboveZero | None = None
    """How many requests, those that are tried again included, one worker makes in a minute; null sets no bound."""
    thinking: Thoughts = "refused"
    """`allowed`: the model may think before it replies, and the reply is what follows the thought. `refused`: the
    metric's max_tokens are for both."""
    thinking_tokens: Positive = 4096
    """Of `thinking=allowed`: tokens of the longest thought; one that is longer is an error of its row."""
    prices: Prices | None = None
    """What a million of the endpoint's tokens cost, for the estimates and totals of a sweep: {read: 2.5, written: 10,
    cached: 1.25, currency: USD}; null leaves costs out."""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the endpoint's key; the key itself is never configured."""

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
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
