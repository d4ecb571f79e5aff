"""Room on a cluster that others work on too: that a run waits for it, and who may be holding it."""

import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

LOG = logging.getLogger(__name__)
PATIENCE_SECONDS = 60.0
"""Without a single worker of a stage, after which it is said."""

RAYS_OWN = "ray::"
"""How the command of a driver begins that belongs to Ray itself, such as that of its dashboard."""


class RoomWatch:
    """Says once, in a line on stderr and in the log, that stages have waited for their first worker for a minute."""

    def __init__(self, who_holds: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._who_holds, self._clock = who_holds, clock
        self._since: dict[str, float] = {}
        self._said = False

    def look(self, without_worker: Collection[str]) -> None:
        """Takes note of the stages that have no worker, running or loading, now."""
        now = self._clock()
        self._since = {stage: self._since.get(stage, now) for stage in without_worker}
        waiting = [stage for stage, since in self._since.items() if now - since >= PATIENCE_SECONDS]
        if waiting and not self._said:
            self._said = True
            line = (
                f"waiting for room on the cluster for a worker of {', '.join(waiting)}: {self._who_holds()}; the run "
                "goes on once there is room, but two that each hold what the other lacks wait for ever: stop one"
            )
            print(line, file=sys.stderr, flush=True)
            LOG.warning(line)


def who_holds() -> str:
    """What the cluster has free, and which drivers are at work on it beside this one."""
    import ray
    from ray._private.state import jobs  # what is public needs the dashboard

    own = ray.get_runtime_context().get_job_id()
    return told(ray.cluster_resources(), ray.available_resources(), [job for job in jobs() if job["JobID"] != own])


def told(total: Mapping[str, float], free: Mapping[str, float], drivers: Sequence[Mapping[str, Any]]) -> str:
    """As `who_holds`, from what Ray says; of a driver not its command, which may hold a secret."""
    amounts = [f"{free.get(name, 0.0):g} of {total[name]:g} {name}s" for name in ("CPU", "GPU") if total.get(name)]
    working = [job for job in drivers if not job["IsDead"] and not job["Entrypoint"].startswith(RAYS_OWN)]
    others = [f"{job['DriverIPAddress']} (process {job['DriverPid']})" for job in working]
    at_work = f"at work beside this run: {', '.join(others)}" if others else "no other driver is at work"
    return f"{' and '.join(amounts)} are free, {at_work}"
