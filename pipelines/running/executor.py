"""Executors compute missing cells, either in this process or on Ray; callers need not know which."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from plumbline.operators.base.errors import MissingExtraError, format_install_remedy
from plumbline.pipelines.base.cluster_config import ClusterConfig, is_ray_installed
from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.events import PhaseStarted, Watch
from plumbline.pipelines.running.workload import Workload, fits_this_process
from plumbline.pipelines.store.cells import Outcome

RETRY_LOG_PATTERN = r"retries remaining"
"""Text that identifies Ray's log lines about retried tasks, such as the tasks of workers that Ctrl-C ended."""


@dataclass(frozen=True, slots=True)
class Executor:
    """Computes missing cells, in this process or in Ray actors.

    In this process, stages are computed one after another, and the run ends if the process dies. In Ray actors, all
    stages are computed at the same time, and the shard of a worker that dies is retried.
    """

    cluster: ClusterConfig
    on_ray: bool

    @property
    def location(self) -> str:
        """Description of where cells are computed, including the option that selects the alternative."""
        if self.on_ray:
            return "on Ray (cluster=here runs it in this process)"
        return "here, in this process (cluster=local runs it on Ray)"

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """Compute the missing cells and return their outcomes by path; raise RunnerError if a stage or Ray fails."""
        if not self.on_ray:
            from plumbline.pipelines.running.in_process import compute_in_process

            return compute_in_process(workload, self.cluster, watch)
        watch(PhaseStarted("starting Ray"))
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", RETRY_LOG_PATTERN)  # Ray reads it when it is imported
        from plumbline.pipelines.running.runner import run_workload  # imports Ray, which takes seconds

        return run_workload(workload, self.cluster, watch)


def choose_executor(cluster: ClusterConfig, nodes: Iterable[NodePlan]) -> Executor:
    """Return the configured executor; `auto` means this process if `fits_this_process` returns True.

    Raise MissingExtraError if cells are to be computed on Ray and Ray is not installed.
    """
    here = cluster.executor == "here" or (cluster.executor == "auto" and fits_this_process(nodes, cluster))
    if not here and not is_ray_installed():
        raise MissingExtraError(f"this cluster needs Ray; {format_install_remedy('ray')}, or set cluster.executor=here")
    return Executor(cluster, on_ray=not here)
