"""Random damage to users' files: replaced byte ranges and unexpected values."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

FEW_EXAMPLES_SETTINGS = settings(max_examples=25, derandomize=True)
FOREIGN_BYTES = [
    b'"', b'""', b",", b"\t", b"\n", b"\r", b"\r\n", b"\\", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc3\xa9", b" ", b"",
    b"{", b"}", b"[", b"]", b":", b"null", b"NaN", b"1e400", b"-1", b"9007199254740993", b"true", b'"\\ud800"',
    b'"text": "x", ', b'"prompt": "x", ', b"../", b"/etc/passwd", b"s3://", b"0.png", b"." * 300, b"[" * 2000,
    b"9" * 5000, b"x" * 200_000, b"prompt_id,text,prompt_id\n", b"p1",
]  # fmt: skip
"""Bytes that do not belong in tables."""
ODD_VALUES: list[Any] = [
    None, True, "", " ", "nan", "-inf", "1e400", "1,5", "p0", "p1", "i0", "g", -1, 0, 1, 7, 2.5, 55, 2**53 + 1, 2**63,
    2**200, 1e308, -1e308, 5e-324, math.nan, math.inf, "é", "\0", "\u2028", "a\nb", '"', ";", "x" * 5000, [], [None],
    ["a", None, 7, math.nan], [["a"]], {}, {"bytes": None, "path": "a"}, {"a": [1]}, "\ud800", "=1+1", "'); drop",
    "../../etc", "s3://", "[red]",
]  # fmt: skip
"""Odd values that occur in users' files, as JSON values."""


class ByteEdit(NamedTuple):
    """A byte range of a file, starting at a fraction of its length, and the bytes that replace the range."""

    place: float
    length: int
    piece: bytes


def draw_edits(pieces: st.SearchStrategy[bytes], longest: int = 40) -> st.SearchStrategy[list[ByteEdit]]:
    """Return a strategy for one to four edits.

    Each edit replaces up to `longest` bytes with one of the `pieces`.
    """
    return st.lists(
        st.builds(ByteEdit, st.floats(0, 1, exclude_max=True), st.integers(0, longest), pieces), min_size=1, max_size=4
    )


def apply_edits(content: bytes, changes: Sequence[ByteEdit]) -> bytes:
    for place, length, piece in changes:
        start = int(place * (len(content) + 1))
        content = content[:start] + piece + content[start + length :]
    return content
