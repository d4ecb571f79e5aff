"""Counts the work of parsing a request, and how it grows with the length of each field."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple, get_args, get_type_hints

from tests.environment import ROOT


class ActionCost(NamedTuple):
    lines: int
    """Number of Python lines executed and C functions called."""
    patterns: frozenset[str]
    """Regular expressions that were applied to any text."""


def count_work(act: Callable[[], Any]) -> ActionCost:
    """Return the cost of an action; the action runs once beforehand to warm the caches."""
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
    return ActionCost(lines, frozenset(patterns))


FieldPath = tuple[str | int, ...]
"""Path of a field in a JSON request: the names of fields, and positions in lists."""


def list_field_paths(form: Any, outer: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the path of each field of a request's dataclass, and of the dataclasses nested in it."""
    for name, meaning in get_type_hints(form).items():
        yield (*outer, name)
        inner = (meaning, *get_args(meaning))
        yield from (
            parts
            for part in inner
            if is_dataclass(part)
            for parts in list_field_paths(part, (*outer, name, *((0,) if part is not meaning else ())))
        )


def set_field(body: bytes, parts: FieldPath, value: Any) -> bytes:
    document = json.loads(body)
    holder = document
    for part in parts[:-1]:
        holder = holder[part]
    holder[parts[-1]] = value
    return json.dumps(document).encode()


def _nest(n: int) -> Any:
    value: Any = []
    for _ in range(n):
        value = [value]
    return value


LONG_VALUES: Mapping[str, Callable[[int], Any]] = {
    "text": lambda n: "x" * n,
    "list": lambda n: ["x"] * n,
    "mapping": lambda n: {f"x{place}": "x" for place in range(n)},
    "nesting": _nest,
    "number": lambda n: 10**n,
}
"""Functions that make a value of a given length, keyed by the kind of value."""


def assert_linear(
    make: Callable[[int], bytes], read: Callable[[bytes], object], linear: frozenset[str] = frozenset()
) -> None:
    """Assert that doubling the length of a request at most doubles the work of reading it.

    `make` returns a request whose length grows with its argument, and `read` parses a request. The regular expressions
    in `linear` are the only ones that may be applied while reading.
    """
    works = [count_work(lambda body=body: read(body)) for body in [make(n) for n in (60, 120, 240)]]  # type: ignore[misc]
    for work, doubled in pairwise(works):
        assert doubled.lines <= 2 * work.lines, works
    assert all(not work.patterns - linear for work in works), works


def find_fields_without_limit(forms: Sequence[Any]) -> list[str]:
    """Return the names of the fields in these dataclasses, and in nested ones, without a limit in docs/security.md."""
    page = (ROOT / "docs/security.md").read_text()
    table = page[page.index("## What a client can send") : page.index("## What is not promised")]
    named = {part for form in forms for parts in list_field_paths(form) for part in parts if isinstance(part, str)}
    return [name for name in sorted(named) if f"`{name}`" not in table]
