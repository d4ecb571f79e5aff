"""What the values of a configuration's fields are held to: said in a field's type, checked wherever one is made."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, NamedTuple, get_args

from plumbline.operators.base.errors import ConfigError


class Bound(NamedTuple):
    """What a value is held to."""

    expected: str
    """In words that follow `expected`."""
    holds: Callable[[Any], bool]


def at_least(least: float, what: str = "") -> Bound:
    """A finite number that is not below another; `what` follows it in words."""
    return Bound(f"at least {least:g}{what}", lambda value: least <= value < math.inf)


Positive = Annotated[int, at_least(1)]
Natural = Annotated[int, Bound("0 or more", lambda value: value >= 0)]
NotNegative = Annotated[float, Bound("0 or more", lambda value: 0 <= value < math.inf)]
AboveZero = Annotated[float, Bound("more than 0", lambda value: 0 < value < math.inf)]
Seconds = Annotated[float, Bound("seconds above 0", lambda value: 0 < value < math.inf)]
Share = Annotated[float, Bound("a share between 0 and 1", lambda value: 0 <= value <= 1)]
SomeShare = Annotated[float, Bound("a share above 0 and at most 1", lambda value: 0 < value <= 1)]
Probability = Annotated[float, Bound("a probability between 0 and 1", lambda value: 0 < value < 1)]
"""Neither of the two."""


class Checked:
    """A dataclass whose fields hold to the bounds in their types; null holds where the type allows it."""

    __slots__ = ()
    section: ClassVar[str] = ""
    """What goes before a field's name in messages, such as `limits.`."""

    def __post_init__(self) -> None:
        """Raises ConfigError for the first value that is out of its bounds."""
        for name, bound in _bounds(type(self)).items():
            value = getattr(self, name)
            if value is not None and not bound.holds(value):
                raise ConfigError(f"{self.key_of(name)}: expected {bound.expected}, got {value}")

    def key_of(self, name: str) -> str:
        """What a field is called in messages."""
        return f"{self.section}{name}"


def _bounds(schema: Any) -> Mapping[str, Bound]:
    return {field.name: bound for field in fields(schema) for bound in _within(field.type)}


def _within(hint: Any) -> Iterator[Bound]:
    """The bound of a field's type, if it has one."""
    yield from (part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Bound))
    if type(None) in (options := get_args(hint)):
        for bound in (bound for option in options for bound in _within(option)):
            yield bound._replace(expected=f"{bound.expected} or null")
