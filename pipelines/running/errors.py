"""Errors that end a run, and any error as one line."""

import traceback
from pathlib import Path

from plumbline.operators.base.errors import PlumblineError, hide_secrets

KEPT = "what was computed is committed: run the same command to go on"


class RunnerError(PlumblineError):
    """A stage cannot run at all."""


def one_line(error: BaseException) -> str:
    """Return an error as one line: a PlumblineError's message, any other error with its type and code location."""
    text = hide_secrets(" ".join(str(error).split()))
    if isinstance(error, PlumblineError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" (in {place.name}, {Path(place.filename).name}:{place.lineno})" if place else ""
    return f"{type(error).__name__}: {text}{where}"
