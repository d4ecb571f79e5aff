"""How missing cells are computed: in this process, or on Ray. Whoever holds an executor need not know which it is."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.events import PhaseStarted, Watch
from plumbline.pipelines.running.small_sweeps import is_small, names_ray
from plumbline.pipelines.running.workload import Workload

RETRIED = r"retries remaining"
"""Matches Ray's lines about tasks that it repeats, such as those of workers that Ctrl-C ended."""


class Executor(Protocol):
    """Computes missing cells."""

    @property
    def place(self) -> str:
        """Where it computes, and which key has it done elsewhere, in one line."""

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """The outcomes of its missing cells, by path; `watch` is told what happens meanwhile.

        Raises RunnerError for a stage that cannot start.
        """


@dataclass(frozen=True, slots=True)
class Here:
    """Computes in this process, one stage after the other. Whatever ends the process ends the run."""

    cluster: ClusterConfig
    place = "here, in this process (cluster=local runs it on Ray)"

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """As Executor says."""
        from plumbline.pipelines.running.here import compute_here

        return compute_here(workload, self.cluster, watch)


@dataclass(frozen=True, slots=True)
class OnRay:
    """Computes in Ray's actors, stages side by side. A shard whose worker dies is retried, without its deadly row."""

    cluster: ClusterConfig
    place = "on Ray (cluster=here runs it in this process)"

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        """As Executor says; raises RunnerError also where Ray itself fails."""
        watch(PhaseStarted("starting Ray"))
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", RETRIED)  # which Ray reads when it is imported
        from plumbline.pipelines.running.runner import run_workload  # imports Ray, which takes seconds

        return run_workload(workload, self.cluster, watch)


def choose_executor(cluster: ClusterConfig, nodes: Iterable[NodePlan]) -> Executor:
    """As `cluster.executor` says; for `auto`, this process where little is missing and no Ray is named."""
    if cluster.executor == "auto":
        return Here(cluster) if not names_ray(cluster) and is_small(nodes, cluster) else OnRay(cluster)
    return Here(cluster) if cluster.executor == "here" else OnRay(cluster)
