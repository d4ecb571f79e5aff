"""Signals that this process should stop: models finish their batches, and no new work starts."""

import threading

from plumbline.operators.base.errors import REMEDIES, RowError

STOP = threading.Event()
"""Set when the process must stop; checked before decoding an image and before calling a model."""
STOPPED = RowError("stopped", f"the run was stopped before this row; {REMEDIES['stopped']}", retryable=True)
"""Error of the rows that were not computed. Cells that contain such rows are drafts, which the next run completes."""
