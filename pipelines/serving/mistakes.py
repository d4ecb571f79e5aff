"""What is wrong with JSON that a page sent or a store keeps; imported where no server is installed."""

from pydantic import ValidationError


def mistake_in(error: ValidationError) -> str:
    """Return the first thing that is wrong with a body, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
