"""Options for models run by a service: address, request rate, prices, and the environment variable with the API key."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from plumbline.operators.base.bounds import BoundsChecked, Natural, NonNegative, Positive, PositiveFloat
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.engines.reading import DEFAULT_READING_INSTRUCTION, DEFAULT_READING_TOKENS
from plumbline.operators.models.model import ModelConfig, ThinkingPermission

TOKENS_PER_PRICE = 1_000_000
"""Number of tokens that each price pays for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(BoundsChecked):
    """Prices of a service per million tokens, as given by the user."""

    section: ClassVar[str] = "model prices."
    read: NonNegative
    written: NonNegative
    cached: NonNegative | None = None
    """Price of input tokens that were in the service's prefix cache; null means the price of other input tokens."""
    currency: str = "USD"
    read_per_call: Natural = 1000
    """Assumed input and output tokens per call for estimates, until a run in the store provides measured numbers."""
    written_per_call: Natural = 250

    def assumed_usage(self) -> Usage:
        return Usage(1, self.read_per_call, 0, self.written_per_call)

    def compute_cost(self, usage: Usage) -> float:
        cached = self.read if self.cached is None else self.cached
        read = (usage.prompt_tokens - usage.cached_tokens) * self.read + usage.cached_tokens * cached
        return (read + usage.new_tokens * self.written) / TOKENS_PER_PRICE


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceModel(ModelConfig):
    """A model at an OpenAI-compatible endpoint."""

    endpoint: str | None = None
    """Base URL of an OpenAI-compatible service, such as http://127.0.0.1:8000/v1; null uses OPENAI_BASE_URL if it is
    set, or OpenAI's own API otherwise.
    """
    concurrency: Positive = 8
    """Maximum number of simultaneous requests to the endpoint from one worker."""
    max_retries: Natural = 6
    """Maximum number of retries of a request; waits grow, and are at least as long as the service requests."""
    image_format: Literal["png", "jpeg"] = "png"
    """Format of images sent to the endpoint: `png` keeps every pixel; `jpeg`, at quality 95, is a fifth of the size."""
    reading: str = DEFAULT_READING_INSTRUCTION
    """Instruction for reading the text in images (`ocr`)."""
    reading_tokens: Positive = DEFAULT_READING_TOKENS
    """Maximum length, in tokens, of the text read from an image; longer texts are cut."""
    timeout: PositiveFloat = 300.0
    """Maximum seconds for one attempt of a request to the endpoint."""
    requests_per_minute: PositiveFloat | None = None
    """Maximum number of requests per minute from one worker, including retries; null means no limit."""
    thinking: ThinkingPermission = "refused"
    """`allowed`: the model may think before it replies, and the reply is what follows the thought. `refused`: thoughts
    count towards the metric's max_tokens, like the reply.
    """
    thinking_tokens: Positive = 4096
    """Maximum length, in tokens, of a thought if `thinking=allowed`; for a longer thought, the row gets an error."""
    prices: Prices | None = None
    """Prices per million tokens, for the estimates and totals of a sweep: {read: 2.5, written: 10, cached: 1.25,
    currency: USD}; null leaves costs out.
    """
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the endpoint's key; the key itself is never configured."""

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        check_endpoint(self.endpoint)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable) is None:
            raise ConfigError(
                "model key_variable: expected the name of an environment variable, not its value; "
                "put the key into that variable"
            )


def check_endpoint(endpoint: str | None) -> None:
    """Raise ConfigError for an address that is invalid or contains a secret, without repeating the address."""
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
