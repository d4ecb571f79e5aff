"""Counts of model calls and their tokens."""

import operator
from typing import NamedTuple


class Usage(NamedTuple):
    """Number of model calls, and numbers of tokens, which are 0 if the model does not count tokens."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from a prefix cache."""
    new_tokens: int = 0
    cut: int = 0
    """Number of replies that were truncated at max_tokens."""

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, self, other))

    def minus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.sub, self, other))
