"""Executors compute missing cells: in this process, or on Ray. Their callers need not know which one they use."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.events import PhaseStarted, Watch
from plumbline.pipelines.running.small_sweeps import has_ray, is_small
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.store.cells import Outcome

RETRIED = r"retries remaining"
"""Pattern of Ray's log lines about tasks that are retried, such as those of workers that Ctrl-C ended."""


class Executor(Protocol):
    """Computes missing cells."""

    @property
    def place(self) -> str:
        """Description of where cells are computed, with the option that selects another executor."""

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """Compute the missing cells and return their outcomes by path; raise RunnerError if a stage cannot start."""


@dataclass(frozen=True, slots=True)
class Here:
    """Computes in this process, one stage after another. If the process dies, the run ends."""

    cluster: ClusterConfig
    place = "here, in this process (cluster=local runs it on Ray)"

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        from plumbline.pipelines.running.in_process import compute_here

        return compute_here(workload, self.cluster, watch)


@dataclass(frozen=True, slots=True)
class OnRay:
    """Computes in Ray's actors, all stages at the same time. If a worker dies, its shard is retried."""

    cluster: ClusterConfig
    place = "on Ray (cluster=here runs it in this process)"

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """Compute the missing cells; raise RunnerError also if Ray itself fails."""
        watch(PhaseStarted("starting Ray"))
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", RETRIED)  # Ray reads it when it is imported
        from plumbline.pipelines.running.runner import run_workload  # imports Ray, which takes seconds

        return run_workload(workload, self.cluster, watch)


def choose_executor(cluster: ClusterConfig, nodes: Iterable[NodePlan]) -> Executor:
    """Return the configured executor; for `auto`, this process if little is missing and no Ray is configured."""
    if cluster.executor == "auto":
        return Here(cluster) if not has_ray(cluster.address) and is_small(nodes, cluster) else OnRay(cluster)
    return Here(cluster) if cluster.executor == "here" else OnRay(cluster)
