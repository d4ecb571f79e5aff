"""The request that this process stop computing: models finish their batches, and no new work begins."""

import threading

from plumbline.operators.base.errors import RowError

STOP = threading.Event()
"""Set while the process is to stop; looked at before an image is decoded and before a model is called."""
STOPPED = RowError("stopped", "the run was stopped before this row; run the same command to go on", retryable=True)
"""Error of the rows that are left out then. Cells with such rows are drafts, which the next run completes."""
