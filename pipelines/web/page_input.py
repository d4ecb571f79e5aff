"""Checks what people enter on a page: JSON, and names that become file names. Needs no server packages."""

import unicodedata

from pydantic import ValidationError

from plumbline.operators.base.errors import SourceError

MAX_NAME_CHARACTERS = 48
"""Maximum number of characters in a name. In UTF-8 this is at most 192 bytes, short enough for a folder name."""
FORBIDDEN_CHARACTERS = frozenset('/\\:*?"<>|[]{}%#')


class BadNameError(SourceError):
    """Raised if the input cannot be used as a person's name."""


def clean_name(given: str, field: str) -> str:
    """Return a person's name for use in file names: normalized (NFC), without surrounding spaces.

    Raises BadNameError for an invalid name; the message refers to the input as `field`.
    """
    name = unicodedata.normalize("NFC", given).strip()
    if not is_valid_name(name):
        raise BadNameError(
            f"{field}: expected a name of up to {MAX_NAME_CHARACTERS} characters that begins with a letter or a digit "
            f"and has none of {' '.join(sorted(FORBIDDEN_CHARACTERS))}, got {given[:80]!r}"
        )
    return name


def is_valid_name(name: str) -> bool:
    """Return True if every file system and S3 allow a folder with this name, and its characters are in NFC."""
    plain = (
        name.isprintable()
        and not FORBIDDEN_CHARACTERS & set(name)
        and name == unicodedata.normalize("NFC", name).strip()
    )
    return plain and name[:1].isalnum() and len(name) <= MAX_NAME_CHARACTERS


def describe_mistake(error: ValidationError) -> str:
    """Describe the first validation error in JSON from a page or a store, with its position."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
