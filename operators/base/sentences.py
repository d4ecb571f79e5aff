"""How the report writes: sentences, numbers, and lists of names that say how many they leave out."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

MOST_NAMES = 4
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"{{{character}}}" for character in "[]*"}  # else they may be options of the command before them
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "−": "$-$", "–": "--", "\n": " ", "\r": " ", "\t": " "}
)
"""What LaTeX shows as it is."""

Row = TypeVar("Row")


class Sentence(NamedTuple):
    """A finding: its first words, which are shown bold, and the rest."""

    lead: str
    rest: str

    def __str__(self) -> str:
        return f"{self.lead} {self.rest}".strip()


class FirstRows(NamedTuple, Generic[Row]):
    """The first rows of a table or list, and how many are left out."""

    rows: list[Row]
    left_out: int = 0


def shown(rows: Sequence[Row], most: int) -> FirstRows[Row]:
    """At most so many rows."""
    return FirstRows(list(rows[:most]), max(len(rows) - most, 0))


NOTHING = "–"
"""Shown for a value that is not there."""


def number(value: float | None, digits: int = 3) -> str:
    """A score as it is shown."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """A difference as it is shown."""
    if value is None or math.isnan(value):
        return "–"
    shown = f"{abs(value):.{digits}f}"
    return shown if float(shown) == 0 else f"{'+' if value > 0 else '−'}{shown}"


NO_INTERVAL = "no interval"
WHY_NO_INTERVAL = "There is no interval where so few prompts differ from the rest that it would not hold."
"""Said once below tables that have NO_INTERVAL in a cell."""


def interval_text(low: float | None, high: float | None, show: Callable[[float | None], str] = number) -> str:
    """Return both ends of an interval as they are shown; NO_INTERVAL if it was refused."""
    if low is None or high is None or math.isnan(low):
        return NO_INTERVAL
    return f"{show(low)} to {show(high)}"


def interval_sentence(low: float | None, high: float | None) -> str:
    """Return `95% interval 0.2 to 0.4`, for a list of facts; NO_INTERVAL if it was refused."""
    said = interval_text(low, high)
    return said if said == NO_INTERVAL else f"95% interval {said}"


def p_text(value: float) -> str:
    """A p-value as it is shown."""
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def count(value: int | None) -> str:
    """A whole number as it is shown."""
    return "–" if value is None else f"{value:,}"


def names(listed: Sequence[str], most: int = MOST_NAMES) -> str:
    """`a, b and c`; of many the first few and how many more."""
    if len(listed) > most + 1:
        return f"{', '.join(listed[:most])} and {len(listed) - most} more"
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def plural(count: int, word: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def latex(text: str) -> str:
    """A text as LaTeX shows it."""
    return text.translate(LATEX)
