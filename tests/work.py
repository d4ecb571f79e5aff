"""Counts of the work of an action: lines of Python, hashed bytes, and the regular expressions that it uses."""

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Work(NamedTuple):
    """The cost of an action in this thread."""

    lines: int
    """Lines of Python that ran, and functions of C that were called."""
    patterns: frozenset[str]
    """Regular expressions that were applied to anything."""


def count_work(act: Callable[[], Any]) -> Work:
    """Run an action once unseen, so that caches are warm, and once more while its steps are counted."""
    act()
    lines, patterns = 0, set[str]()

    def see_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return see_line

    def see_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal lines
        lines += event == "c_call"
        if event == "c_call" and isinstance(getattr(argument, "__self__", None), re.Pattern):
            patterns.add(str(argument.__self__.pattern))

    sys.settrace(see_line)
    sys.setprofile(see_call)
    try:
        act()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return Work(lines, frozenset(patterns))
