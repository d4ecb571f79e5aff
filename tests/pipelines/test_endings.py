"""Exit codes: nothing failed, a share within the budget, or more."""

import pytest

from plumbline.pipelines.base.endings import COMPLETE, OVER_BUDGET, WITHIN_BUDGET, exit_code


@pytest.mark.parametrize(
    "failed, rows, max_failed, code",
    [
        (0, 0, 0.0, COMPLETE),
        (0, 100, 0.0, COMPLETE),
        (1, 100, 0.01, WITHIN_BUDGET),
        (2, 100, 0.01, OVER_BUDGET),
        (100, 100, 1.0, WITHIN_BUDGET),
    ],
)
def test_the_share_of_failed_rows_decides(failed: int, rows: int, max_failed: float, code: int) -> None:
    assert exit_code(failed, rows, max_failed) == code
