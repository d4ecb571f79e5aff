"""What model calls took."""

import operator
from typing import NamedTuple


class Usage(NamedTuple):
    """What model calls took, in tokens where the model counts any."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from a prefix cache."""
    new_tokens: int = 0
    cut: int = 0
    """Replies that were cut at max_tokens."""

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, self, other))

    def minus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.sub, self, other))
