"""Request to stop this process: models finish their batches, and no new work begins."""

import threading

from plumbline.operators.base.errors import REMEDIES, RowError

STOP = threading.Event()
"""Set when the process must stop; checked before decoding an image and before calling a model."""
STOPPED = RowError("stopped", f"the run was stopped before this row; {REMEDIES['stopped']}", retryable=True)
"""Error of the rows that were not computed. Cells with such rows are drafts, which the next run completes."""
