"""Errors that end a run, and any error as one line."""

import traceback
from pathlib import Path

from plumbline.operators.base.errors import PlumblineError, hide_secrets

RESUME = "what was computed is committed: run the same command to go on"
"""Remedy for a run that ended early."""


class RunnerError(PlumblineError):
    """A stage cannot run at all."""


def one_line(error: BaseException) -> str:
    """Return an error as one line: a PlumblineError's message, any other error with its type and code location."""
    text = hide_secrets(" ".join(str(error).split()))
    if isinstance(error, PlumblineError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" (in {frame.name}, {Path(frame.filename).name}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {text}{where}"
