"""Signals that tell this process to stop: models finish their current batches, and no new work starts."""

import threading

from plumbline.operators.base.errors import REMEDIES_BY_KIND, RowError

STOP_REQUESTED = threading.Event()
"""Set when the process must stop; checked before decoding an image and before calling a model."""
STOPPED_ERROR = RowError(
    "stopped", f"the run was stopped before this row; {REMEDIES_BY_KIND['stopped']}", retryable=True
)
"""Error for rows that were not computed because the process stopped. Cells that contain such rows are drafts; the next
run completes them.
"""
