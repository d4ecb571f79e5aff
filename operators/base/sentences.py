"""Formats the text of reports: sentences, text tables, numbers, intervals, and lists of names."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

MAX_LISTED_NAMES = 4
LATEX_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"{{{character}}}" for character in "[]*"}  # else LaTeX may read them as options
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "−": "$-$", "–": "--", "\n": " ", "\r": " ", "\t": " "}
)
"""Escapes for characters that LaTeX does not print unchanged."""

Row = TypeVar("Row")


class Sentence(NamedTuple):
    """A sentence of a report: its first words, which are shown in bold, and the rest."""

    lead: str
    rest: str

    def __str__(self) -> str:
        return f"{self.lead} {self.rest}".strip()


class FirstRows(NamedTuple, Generic[Row]):
    """The first rows of a table or list, which are shown, and the number of rows that are left out."""

    rows: list[Row]
    left_out: int = 0


def take_first_rows(rows: Sequence[Row], limit: int) -> FirstRows[Row]:
    return FirstRows(list(rows[:limit]), max(len(rows) - limit, 0))


class ShownTable(NamedTuple):
    """Table of strings, as shown on a page or in a terminal."""

    title: str
    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


NO_VALUE_MARK = "–"
"""Text shown for a missing value."""


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a score as text with this many digits after the point; a missing value or nan becomes NO_VALUE_MARK."""
    return NO_VALUE_MARK if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def format_signed(value: float | None, digits: int = 3) -> str:
    """Return a difference as text with its sign, such as +0.120.

    A difference that rounds to 0 has no sign; a missing value or nan becomes NO_VALUE_MARK.
    """
    if value is None or math.isnan(value):
        return NO_VALUE_MARK
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def format_percent(share: float) -> str:
    """Return a fraction as a percentage, such as 12.5%; nan becomes NO_VALUE_MARK."""
    return format_number(None) if math.isnan(share) else f"{100 * share:.1f}%"


NO_INTERVAL = "no interval"
NO_INTERVAL_NOTE = "No interval is shown if too few prompts differ from the rest for it to be reliable."
"""Note below tables that contain NO_INTERVAL."""


def format_interval(low: float | None, high: float | None, show: Callable[[float | None], str] = format_number) -> str:
    """Return an interval as text, such as `0.2 to 0.4`, or NO_INTERVAL if the bounds are missing.

    `show` formats each bound.
    """
    if low is None or high is None or math.isnan(low):
        return NO_INTERVAL
    return f"{show(low)} to {show(high)}"


def describe_interval(low: float | None, high: float | None) -> str:
    """Return an interval for a list of facts, such as `95% interval 0.2 to 0.4`, or NO_INTERVAL without bounds."""
    text = format_interval(low, high)
    return text if text == NO_INTERVAL else f"95% interval {text}"


def format_p_value(value: float) -> str:
    if math.isnan(value):
        return NO_VALUE_MARK
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_count(value: int | None) -> str:
    """Return a whole number as text with thousands separators; None becomes NO_VALUE_MARK."""
    return NO_VALUE_MARK if value is None else f"{value:,}"


def format_names(listed: Sequence[str], limit: int = MAX_LISTED_NAMES) -> str:
    """Return text such as `a, b and c`; after `limit` names, the rest is only counted: `a, b, c, d and 7 more`."""
    if len(listed) > limit + 1:
        return f"{', '.join(listed[:limit])} and {len(listed) - limit} more"
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def format_quantity(count: int, word: str) -> str:
    """Return a count with its noun, such as `1 pair` or `2 pairs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def escape_latex(text: str) -> str:
    return text.translate(LATEX_ESCAPES)
