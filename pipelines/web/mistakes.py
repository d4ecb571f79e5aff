"""Describes mistakes in JSON from a page or a store; needs no server's packages."""

from pydantic import ValidationError


def mistake_in(error: ValidationError) -> str:
    """Return the first thing that is wrong with a body, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
