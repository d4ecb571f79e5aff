"""Errors that end a run, and the formatting of any error as a single line."""

import traceback
from pathlib import Path

from plumbline.operators.base.errors import PlumblineError, hide_secrets

RESUME_HINT = "computed results are committed; run the same command to continue"
"""Remedy for a run that ended early."""


class RunnerError(PlumblineError):
    """Raised if Ray itself fails, or if a stage cannot run at all."""


def format_error(error: BaseException) -> str:
    """Format an error on one line: a PlumblineError's message, or any other error with its type and code location."""
    text = hide_secrets(" ".join(str(error).split()))
    if isinstance(error, PlumblineError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" (in {frame.name}, {Path(frame.filename).name}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {text}{where}"
