"""What a service asks for tokens, as its user configures it: nothing here knows a vendor's prices."""

import math
from dataclasses import dataclass

from plumbline.operators.errors import ConfigError
from plumbline.operators.models.calls import Usage

PER = 1_000_000
"""Tokens that a price is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Of a model at an endpoint, for a million tokens."""

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
