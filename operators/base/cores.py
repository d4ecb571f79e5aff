"""The number of processor cores that this process may use."""

import os


def count_cores() -> int:
    """Return the number of cores that this process may use.

    On systems without CPU affinity, such as macOS, the process may use all cores.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
