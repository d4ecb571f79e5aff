"""Signals that tell this process to stop: models finish their current batches, and no new work starts."""

import threading

from plumbline.operators.base.errors import REMEDIES, RowError

STOP = threading.Event()
"""Set when the process must stop; checked before decoding an image and before calling a model."""
STOPPED = RowError("stopped", f"the run was stopped before this row; {REMEDIES['stopped']}", retryable=True)
"""Error of rows that were not computed because the process stopped. Cells that contain such rows are drafts; the next
run completes them.
"""
