"""Formats the text of reports: sentences, text tables, numbers, intervals, and lists of names."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

MAX_NAMES = 4
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
    """The first rows of a table or list, and the number of further rows that are left out."""

    rows: list[Row]
    left_out: int = 0


def first_rows(rows: Sequence[Row], limit: int) -> FirstRows[Row]:
    return FirstRows(list(rows[:limit]), max(len(rows) - limit, 0))


class ShownTable(NamedTuple):
    """A table of texts, as shown on a page or in a terminal."""

    title: str
    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


NOTHING = "–"
"""Text shown for a missing value."""


def number(value: float | None, digits: int = 3) -> str:
    """Format a score; a missing value or NaN becomes NOTHING."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """Format a difference with its sign, such as +0.120; zero has no sign, and a missing value becomes NOTHING."""
    if value is None or math.isnan(value):
        return NOTHING
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def percent(share: float) -> str:
    """Format a fraction as a percentage, such as 12.5%; NaN becomes NOTHING."""
    return number(None) if math.isnan(share) else f"{100 * share:.1f}%"


NO_INTERVAL = "no interval"
WHY_NO_INTERVAL = "No interval is shown if too few prompts differ from the rest for it to be reliable."
"""Note below tables that contain NO_INTERVAL."""


def interval_text(low: float | None, high: float | None, show: Callable[[float | None], str] = number) -> str:
    """Format an interval, such as `0.2 to 0.4`; return NO_INTERVAL if the bounds are missing."""
    if low is None or high is None or math.isnan(low):
        return NO_INTERVAL
    return f"{show(low)} to {show(high)}"


def interval_sentence(low: float | None, high: float | None) -> str:
    """Format an interval for a list of facts, such as `95% interval 0.2 to 0.4`, or NO_INTERVAL without bounds."""
    text = interval_text(low, high)
    return text if text == NO_INTERVAL else f"95% interval {text}"


def format_p_value(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def count(value: int | None) -> str:
    """Format a whole number with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def names(listed: Sequence[str], limit: int = MAX_NAMES) -> str:
    """Join names, as in `a, b and c`; after `limit` names, only count the remaining names: `a, b, c, d and 7 more`."""
    if len(listed) > limit + 1:
        return f"{', '.join(listed[:limit])} and {len(listed) - limit} more"
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def plural(count: int, word: str) -> str:
    """Return a count with its noun, which gets an s unless the count is 1: `1 pair` or `2 pairs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def escape_latex(text: str) -> str:
    return text.translate(LATEX_ESCAPES)
