"""How a job ends: complete, within its budget of failed rows, or over it; and a night in some ways more."""

COMPLETE, OVER_BUDGET, WITHIN_BUDGET = 0, 1, 2
REGRESSION, HELD, LOST, LATE = 3, 4, 5, 6
"""A night's: something became worse; another night is at work; its lease was lost to one; its deadline passed."""
GATE_FAILED = 7
"""A run did not pass its gate."""


def exit_code(failed: int, rows: int, max_failed: float) -> int:
    """The exit code of so many failed among all rows, of which a share of `max_failed` is within the budget."""
    if not failed:
        return COMPLETE
    return WITHIN_BUDGET if failed / rows <= max_failed else OVER_BUDGET


def worse(code: int, other: int) -> int:
    """Of the exit codes of two parts of a job, that of the whole."""
    return max(code, other, key=(COMPLETE, WITHIN_BUDGET, REGRESSION, GATE_FAILED, OVER_BUDGET).index)
