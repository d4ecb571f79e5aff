"""What a release is to a metric: its prompts, how it asks by them, and how it reads replies."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar, Self, TypeVar

from plumbline.operators.metrics.parsing import MAX_REPLY
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.writing import UnreadableReply, Writing
from plumbline.operators.models.calls import Request

T = TypeVar("T")
FAILURES = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
"""What a reader meets in a reply of another form than it expects."""


@dataclass(frozen=True, slots=True)
class Release(ABC):
    """The texts that are read of a checkout; all of them are in the keys of what is asked with them."""

    repository: ClassVar[str]
    """Its owner and name on GitHub."""
    mark: ClassVar[str]
    """The file by which a checkout is known."""
    decides: ClassVar[tuple[str, ...]]
    """The metric's options that the release has values of its own for."""
    temperature: ClassVar[float] = 0.0
    """Of its replies, where it decides that."""

    @classmethod
    @abstractmethod
    def read(cls, checkout: Checkout) -> Self:
        """Raises ConfigError where the checkout has not what the release has."""

    @property
    def digest(self) -> str:
        """A short name for exactly these texts."""
        return hashlib.sha256(json.dumps([type(self).__name__, astuple(self)]).encode()).hexdigest()[:16]


def ask_as_released(
    requests: Sequence[Request], readers: Sequence[Callable[[str], T]], *, tries: int = 1
) -> Writing[list[T]]:
    """Several replies, each read as far as it goes; where one cannot be read, all are asked for again, word for word.

    Raises UnreadableReply after so many tries. Readers may fail in any of the ways of a release's code (FAILURES).
    """
    for attempt in range(tries):
        replies = yield [request._replace(seed=request.seed + attempt) for request in requests]
        try:
            if (longest := max(len(reply.text) for reply in replies)) > MAX_REPLY:
                raise UnreadableReply(f"expected at most {MAX_REPLY} characters, found {longest}")
            return [read(reply.text) for read, reply in zip(readers, replies, strict=True)]
        except (*FAILURES, UnreadableReply) as error:
            problem = str(error)
    raise UnreadableReply(f"{problem}; it is read as the release's code reads it")
