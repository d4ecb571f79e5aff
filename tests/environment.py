"""The environment of all test processes, without the user's own settings."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def set_environment() -> None:
    """Set the environment of this process, which its child processes inherit."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    os.environ |= {
        "AWS_EC2_METADATA_DISABLED": "true",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",  # several heads start at once on a busy machine
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # Ray Data leaves a detached actor, which a head would wait for
        "PYTHONPATH": str(ROOT),  # lets Ray's workers import the tests' hook
    }
    if "PYTEST_XDIST_WORKER" in os.environ:
        # otherwise threads busy-wait for a thread whose core another worker is using
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
