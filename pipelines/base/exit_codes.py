"""Exit codes of jobs, which depend on the number of failed rows, and additional exit codes of jobs.nightly."""

from typing import NamedTuple

COMPLETE, OVER_BUDGET, WITHIN_BUDGET = 0, 1, 2
REGRESSION, LEASE_HELD, LEASE_LOST, DEADLINE_PASSED = 3, 4, 5, 6
"""Exit codes of jobs.nightly: a regression was found; another run has the lease; another run took this run's lease; the
deadline has passed.
"""
GATE_FAILED = 7
"""Exit code of a run that did not pass its gate."""


class Ending(NamedTuple):
    """The exit code of a job, and the reason that the job prints."""

    code: int = COMPLETE
    reason: str = ""
    """The reason for the exit code; empty if the code is 0."""

    def prefix_reason(self, name: str) -> "Ending":
        """Return the ending with a benchmark's name in front of the reason, if there is a reason."""
        return self._replace(reason=f"{name}: {self.reason}" if self.reason else "")

    def choose_worse(self, other: "Ending") -> "Ending":
        return self if choose_worse_code(self.code, other.code) == self.code else other

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.reason}" if self.reason else f"exit code {self.code}"


def make_ending(failed: int, rows: int, max_failed: float) -> Ending:
    """Return the ending of a job, given the number of failed rows, the number of all rows and the allowed fraction."""
    if not failed:
        return Ending()
    within = failed / rows <= max_failed
    counted = f"{failed:,} of {rows:,} rows ({failed / rows:.2%}) {'has' if failed == 1 else 'have'} no score"
    budget = f"{'within' if within else 'above'} max_failed={100 * max_failed:g}%"
    return Ending(WITHIN_BUDGET if within else OVER_BUDGET, f"{counted}, {budget}")


def compute_exit_code(failed: int, rows: int, max_failed: float) -> int:
    """Return the exit code of a job; `max_failed` is the fraction of rows that may fail."""
    return make_ending(failed, rows, max_failed).code


def choose_worse_code(code: int, other: int) -> int:
    return max(code, other, key=(COMPLETE, WITHIN_BUDGET, REGRESSION, GATE_FAILED, OVER_BUDGET).index)
