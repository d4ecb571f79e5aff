"""Base class of releases: their prompts, how they ask, and how they read replies."""

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
"""Errors of a reader for a reply of an unexpected form."""


@dataclass(frozen=True, slots=True)
class Release(ABC):
    """Texts read from a checkout; all of them are in the keys of requests with them."""

    repository: ClassVar[str]
    """Owner and name on GitHub."""
    mark: ClassVar[str]
    """The file that identifies a checkout."""
    decides: ClassVar[tuple[str, ...]]
    """Options of the metric that the release has values of its own for."""
    temperature: ClassVar[float] = 0.0
    """Temperature of its replies, if it decides that."""

    @classmethod
    @abstractmethod
    def read(cls, checkout: Checkout) -> Self:
        """Read the release; raise ConfigError if the checkout lacks a part of it."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([type(self).__name__, astuple(self)]).encode()).hexdigest()[:16]


def ask_as_released(
    requests: Sequence[Request], readers: Sequence[Callable[[str], T]], *, tries: int = 1
) -> Writing[list[T]]:
    """Ask for several replies and parse them, even if they are cut; if one is unreadable, ask again for all of them.

    Each further try has the same requests with the next seed. Raises UnreadableReply after `tries` tries. Readers may
    fail in any way that a release's code does (FAILURES).
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
