"""Describes validation errors of JSON from a page or a store; needs no packages of servers."""

from pydantic import ValidationError


def describe_mistake(error: ValidationError) -> str:
    """Return the first validation error of a body, with its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
