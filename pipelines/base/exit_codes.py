"""How a job ends: complete, within its budget of failed rows, or over it; and a night in some ways more."""

from typing import NamedTuple

COMPLETE, OVER_BUDGET, WITHIN_BUDGET = 0, 1, 2
REGRESSION, HELD, LOST, LATE = 3, 4, 5, 6
"""A night's: something became worse; another night is at work; its lease was lost to one; its deadline passed."""
GATE_FAILED = 7
"""A run did not pass its gate."""


class Ending(NamedTuple):
    """The exit code of a job and the reason that it prints."""

    code: int = COMPLETE
    reason: str = ""
    """Why the code is not 0, in words."""

    def of_part(self, name: str) -> "Ending":
        """Return the ending of one of several parts, with its name in the reason."""
        return self._replace(reason=f"{name}: {self.reason}" if self.reason else "")

    def worse(self, other: "Ending") -> "Ending":
        """Return the worse of the endings of two parts of a job, the first of equal ones."""
        return self if worse(self.code, other.code) == self.code else other

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.reason}" if self.reason else f"exit code {self.code}"


def end(failed: int, rows: int, max_failed: float) -> Ending:
    """Return how a job ends whose budget is a share of `max_failed` of its rows."""
    if not failed:
        return Ending()
    within = failed / rows <= max_failed
    counted = f"{failed:,} of {rows:,} rows ({failed / rows:.2%}) {'has' if failed == 1 else 'have'} no score"
    budget = f"{'within' if within else 'above'} max_failed={100 * max_failed:g}%"
    return Ending(WITHIN_BUDGET if within else OVER_BUDGET, f"{counted}, {budget}")


def exit_code(failed: int, rows: int, max_failed: float) -> int:
    """Return the exit code of a job whose budget is a share of `max_failed` of its rows."""
    return end(failed, rows, max_failed).code


def worse(code: int, other: int) -> int:
    """Of the exit codes of two parts of a job, that of the whole."""
    return max(code, other, key=(COMPLETE, WITHIN_BUDGET, REGRESSION, GATE_FAILED, OVER_BUDGET).index)
