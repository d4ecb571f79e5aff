"""Bounds on configuration values: declared in a field's type, and checked whenever a configuration is created."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Annotated, Any, ClassVar, NamedTuple, cast, get_args

from plumbline.operators.base.errors import ConfigError


class Bound(NamedTuple):
    """Condition that a configuration value must meet, with its description for messages."""

    expected: str
    """The condition as text, as in "expected at least 1"."""
    holds: Callable[[Any], bool]


def at_least(minimum: float, unit: str = "") -> Bound:
    """Return a bound for finite numbers of at least `minimum`; `unit` follows the minimum in messages."""
    return Bound(f"at least {minimum:g}{unit}", lambda value: minimum <= value < math.inf)


Positive = Annotated[int, at_least(1)]
Natural = Annotated[int, Bound("0 or more", lambda value: value >= 0)]
NonNegative = Annotated[float, Bound("0 or more", lambda value: 0 <= value < math.inf)]
PositiveFloat = Annotated[float, Bound("more than 0", lambda value: 0 < value < math.inf)]
Seconds = Annotated[float, Bound("a positive number of seconds", lambda value: 0 < value < math.inf)]
Share = Annotated[float, Bound("a fraction between 0 and 1", lambda value: 0 <= value <= 1)]
NonZeroShare = Annotated[float, Bound("a fraction above 0 and at most 1", lambda value: 0 < value <= 1)]
Probability = Annotated[float, Bound("a probability between 0 and 1", lambda value: 0 < value < 1)]
"""A probability strictly between 0 and 1."""


class BoundsChecked:
    """Base class of dataclasses that check their fields against the bounds in the field types; None is allowed."""

    __slots__ = ()
    section: ClassVar[str] = ""
    """Prefix of field names in messages, such as `limits.`."""

    def __post_init__(self) -> None:
        for field in fields(cast(Any, self)):
            value = getattr(self, field.name)
            for bound in _find_bounds(field.type):
                if value is not None and not bound.holds(value):
                    raise ConfigError(f"{self.format_key(field.name)}: expected {bound.expected}, got {value}")

    def format_key(self, name: str) -> str:
        """Return the full configuration key of a field: the prefix `section` followed by the field's name."""
        return f"{self.section}{name}"


def _find_bounds(hint: Any) -> Iterator[Bound]:
    yield from (part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Bound))
    if type(None) in (options := get_args(hint)):
        for bound in (bound for option in options for bound in _find_bounds(option)):
            yield bound._replace(expected=f"{bound.expected} or null")
