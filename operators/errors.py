"""The errors a person can act on, and the form a failure takes inside a row."""

from typing import NamedTuple


class PlumblineError(Exception):
    """A failure whose message is one readable line: what was expected, what was found, where, and the remedy."""


class ConfigError(PlumblineError):
    """The configuration cannot be used as it stands; raised before any model loads."""


class SourceError(PlumblineError):
    """A source table is missing, truncated or of the wrong schema."""


class ModelError(PlumblineError):
    """A checkpoint cannot be found, is not one, or does not load."""


class RowError(NamedTuple):
    """Why one row has no result; stored in the row's `error` column."""

    kind: str
    """A short stable name, such as `corrupt_image`."""
    message: str
    """What was found and what to do about it, for a person."""
    retryable: bool = False
    """Whether the same computation may succeed another time."""
