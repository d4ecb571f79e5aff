"""Input of people on a page: names that are used as file names, and JSON; needs no packages of servers."""

import unicodedata

from pydantic import ValidationError

from plumbline.operators.base.errors import SourceError

MAX_NAME = 48
"""Characters of a name. In UTF-8 it has at most 192 bytes, so it can be a folder's name."""
FORBIDDEN = frozenset('/\\:*?"<>|[]{}%#')


class BadName(SourceError):
    """A text that cannot be a person's name."""


def clean_name(given: str, field: str) -> str:
    """Return a person's name for file names: normalized (NFC), without surrounding spaces.

    Raises BadName for an invalid name; its message calls the text by its `field`.
    """
    name = unicodedata.normalize("NFC", given).strip()
    if not is_clean(name):
        raise BadName(
            f"{field}: expected a name of up to {MAX_NAME} characters that begins with a letter or a digit and has "
            f"none of {' '.join(sorted(FORBIDDEN))}, got {given[:80]!r}"
        )
    return name


def is_clean(name: str) -> bool:
    """Return True if a folder can have this name on every disk and on S3, and no other name looks the same."""
    plain = name.isprintable() and not FORBIDDEN & set(name) and name == unicodedata.normalize("NFC", name).strip()
    return plain and name[:1].isalnum() and len(name) <= MAX_NAME


def describe_mistake(error: ValidationError) -> str:
    """Return the first validation error of JSON from a page or a store, with its position."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
