"""The runner: a plan's missing cells through Ray Data actor pools, with nothing lost when a worker dies."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import SystemException, UserCodeException
from ray.exceptions import RayError

from pipelines.cells.cells import Outcome, Work
from pipelines.cells.plan import Node, Plan
from pipelines.running.actor import CALLS_PER_ACTOR, StageActor
from pipelines.running.errors import KEPT, RunnerError, one_line
from pipelines.running.placement import NodeResources, plan_waves
from pipelines.running.pools import ClusterConfig, PoolConfig
from pipelines.running.progress import NodeProgress, ProgressLog
from pipelines.running.session import ray_session
from pipelines.running.stages import StageContext

POLL_SECONDS = 0.25

Report = Callable[[Mapping[str, NodeProgress]], None]


class Runner:
    """Runs a plan's work and gathers what became of every cell."""

    def __init__(self, plan: Plan, context: StageContext, cluster: ClusterConfig, report: Report) -> None:
        self.context = context
        self.cluster = cluster
        self.report = report
        self.nodes = {item.node.name: item.node for item in plan.nodes if item.missing}
        self.outcomes: dict[str, Outcome] = {}
        self.progress = ray.remote(ProgressLog).options(num_cpus=0).remote()

    def run(self, work: Sequence[Work]) -> None:
        """Runs the work through every node it needs, wave by wave; outcomes gather in `outcomes`."""
        needed = {cell.node for item in work for cell in item.cells}
        pools = {name: self._pool(node) for name, node in self.nodes.items() if name in needed}
        for wave in plan_waves(pools, _machines()):
            self._run_wave(wave, work)

    def _run_wave(self, wave: Sequence[str], work: Sequence[Work]) -> None:
        """One dataset over the shards with something to do in this wave."""
        mine = [item for item in work if any(cell.node in wave for cell in item.cells)]
        with self._reporting():
            try:
                for row in self._dataset(wave, mine).iter_rows():
                    self.outcomes |= Work.from_json(row["work"]).outcomes
            except (RayError, UserCodeException, SystemException) as error:
                failure = ray.get(self.progress.start_failure.remote())
                if failure is not None:
                    raise RunnerError(f"stage {failure}") from error
                raise RunnerError(
                    f"the cluster gave up on stage(s) {', '.join(wave)} ({one_line(error)}); {KEPT}"
                ) from error

    def _dataset(self, wave: Sequence[str], work: Sequence[Work]) -> Any:
        rows = [{"work": self._with_outcomes(item).to_json()} for item in work]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        for name in wave:
            dataset = self._through(dataset, self.nodes[name], len(rows))
        return dataset

    def _with_outcomes(self, work: Work) -> Work:
        """The work with what is known of the cells upstream of its own."""
        inputs = {path for cell in work.cells for path in cell.upstream}
        return replace(work, outcomes={path: self.outcomes[path] for path in inputs & self.outcomes.keys()})

    def _pool(self, node: Node) -> PoolConfig:
        """The stage's pool; a node without a model of its own on this machine needs no GPU."""
        pool = self.cluster.pools[node.stage]
        return pool if node.model is not None and node.model.local else replace(pool, num_gpus=0)

    def _through(self, dataset: Any, node: Node, shards: int) -> Any:
        pool = self._pool(node)
        return dataset.map_batches(
            StageActor,
            fn_constructor_args=(node, self.context, self.progress, pool, self.cluster.max_attempts),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(
                min_size=min(pool.min_size, shards),
                max_size=min(pool.max_size, shards),
                max_tasks_in_flight_per_actor=2 * CALLS_PER_ACTOR,
                max_concurrent_calls_per_actor=CALLS_PER_ACTOR,
                enable_true_multi_threading=True,
            ),
            num_cpus=pool.num_cpus,
            num_gpus=pool.num_gpus,
        )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Passes snapshots of the progress on while a dataset runs."""
        stop = threading.Event()

        def poll() -> None:
            while not stop.wait(POLL_SECONDS):
                self._report()

        poller = threading.Thread(target=poll, daemon=True)
        poller.start()
        try:
            yield
        finally:
            stop.set()
            poller.join()
            self._report()

    def _report(self) -> None:
        """Passes a snapshot on; where Ray itself has failed there is none, and what waits for its work tells why."""
        with suppress(RayError):
            self.report(ray.get(self.progress.snapshot.remote()))


def run_plan(plan: Plan, context: StageContext, cluster: ClusterConfig, report: Report) -> dict[str, Outcome]:
    """Computes a plan's missing cells; questions first, since images of any prompt may come in any shard."""
    try:
        with ray_session(cluster), _running(plan, context, cluster, report) as runner:
            for work in (plan.prompt_work, plan.image_work):
                if work:
                    runner.run(work)
            return runner.outcomes
    except RayError as error:
        raise RunnerError(f"Ray failed ({one_line(error)}); {KEPT}") from error


@contextmanager
def _running(plan: Plan, context: StageContext, cluster: ClusterConfig, report: Report) -> Iterator[Runner]:
    _quieten()
    runner = Runner(plan, context, cluster, report)
    try:
        yield runner
    finally:
        ray.kill(runner.progress)


def _machines() -> list[NodeResources]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [NodeResources(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]


def _quieten() -> None:
    """Leaves the terminal to our own progress."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
