"""The runner: a plan's missing cells through Ray Data actor pools, with nothing lost when a worker dies."""

import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import SystemException, UserCodeException
from ray.exceptions import RayError

from operators.batches import device_lost
from operators.errors import PlumblineError
from pipelines.cells import Cell, Outcome, Work
from pipelines.config import ClusterConfig
from pipelines.placement import NodeResources, plan_waves
from pipelines.plan import Node, Plan
from pipelines.progress import NodeProgress, ProgressLog
from pipelines.stages import RUNNERS, StageContext

CALLS_PER_ACTOR = 2
"""One call computes while the other reads and decodes the next shard, or commits the last one."""
POLL_SECONDS = 0.25

Report = Callable[[Mapping[str, NodeProgress]], None]


class RunnerError(PlumblineError):
    """A stage cannot run at all."""


class StageActor:
    """One actor of a node's pool: loads its model once, then turns shards into committed cells."""

    def __init__(self, node: Node, context: StageContext, progress: Any, threads: int | None) -> None:
        self.node = node
        self.store = context.store
        self.progress = progress
        self.computing = threading.Lock()
        try:
            if threads is not None and node.model is not None:
                _set_torch_threads(threads)
            self.stage: Any = RUNNERS[node.stage](node, context)
        except Exception as error:
            ray.get(progress.failed_to_start.remote(node.name, _one_line(error)))
            raise

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """One row of the dataset, a Work as JSON, back with the outcomes of this node's cells."""
        work = Work.from_json(str(batch["work"][0]))
        cells = [cell for cell in work.cells if cell.node == self.node.name and cell.path not in work.outcomes]
        if not cells:
            return batch
        ray.get(self.progress.started.remote(self.node.name, shard_name(work)))
        outcomes = dict(work.outcomes) | self._outcomes(work, cells)
        mine = [outcomes[cell.path] for cell in cells]
        self.progress.finished.remote(self.node.name, shard_name(work), work.shard.rows, mine)
        return {"work": [Work(shard=work.shard, cells=work.cells, outcomes=outcomes).to_json()]}

    def _outcomes(self, work: Work, cells: Sequence[Cell]) -> dict[str, Outcome]:
        """What became of each cell; a failure of the whole shard fails its cells and nothing else."""
        blocked = {cell.path: failure for cell in cells if (failure := failed_input(cell, work.outcomes))}
        able = [cell for cell in cells if cell.path not in blocked]
        if not able:
            return blocked
        try:
            prepared = self.stage.prepare(work, able)
            with self.computing:
                tables = self.stage.compute(prepared, able)
            return blocked | {cell.path: self.store.save(cell, tables[cell.metric]) for cell in able}
        except Exception as error:
            if device_lost(error):
                raise  # only a new actor can go on
            failure = Outcome(state="failed", message=_one_line(error))
            return blocked | {cell.path: failure for cell in able}


def failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """The failure of a cell upstream, passed on."""
    failures = [outcomes[path] for path in cell.inputs if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def shard_name(work: Work) -> str:
    """What a shard is called in progress and messages."""
    return f"{work.shard.group}/{work.shard.name}"


def _one_line(error: BaseException) -> str:
    """The error for a person: a PlumblineError speaks for itself, anything else with its type and place."""
    text = " ".join(str(error).split())
    if isinstance(error, PlumblineError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" (in {place.name}, {os.path.basename(place.filename)}:{place.lineno})" if place else ""
    return f"{type(error).__name__}: {text}{where}"


def _set_torch_threads(threads: int) -> None:
    import torch  # only in actors: the driver never imports it

    torch.set_num_threads(threads)


@contextmanager
def ray_session(cluster: ClusterConfig) -> Iterator[None]:
    """The given cluster, or else a local Ray of our own, which is shut down at the end."""
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    own = not ray.is_initialized()
    if own:
        _connect(address, cluster)
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def _connect(address: str, cluster: ClusterConfig) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address="local", num_cpus=cluster.num_cpus, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunnerError(
            f"Ray at {address!r}: cannot be reached ({_one_line(error)}); check cluster.address or RAY_ADDRESS"
        ) from error


class Unfinished(NamedTuple):
    """What a crashed dataset left behind."""

    suspects: list[Work]
    """Being worked on when it crashed."""
    others: list[Work]
    reason: str


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
        pools = {name: self.cluster.pools[node.stage] for name, node in self.nodes.items() if name in needed}
        for wave in plan_waves(pools, _machines()):
            self._run_wave(wave, work)

    def _run_wave(self, wave: Sequence[str], work: Sequence[Work]) -> None:
        """Runs all shards; those that a worker died on are tried again alone, so that they fail alone."""
        pending = [item for item in work if any(cell.node in wave for cell in item.cells)]
        while pending:
            unfinished = self._execute(wave, pending)
            for item in unfinished.suspects:
                alone = self._execute(wave, [item])
                if alone.suspects:
                    self._give_up(wave, item, alone.reason)
            pending = unfinished.others

    def _execute(self, wave: Sequence[str], work: Sequence[Work]) -> "Unfinished":
        """One dataset over the work; tells what is left where a worker died once too often."""
        left = {shard_name(item): item for item in work}
        with self._reporting():
            try:
                for row in self._dataset(wave, work).iter_rows():
                    done = Work.from_json(row["work"])
                    self.outcomes |= done.outcomes
                    del left[shard_name(done)]
            except (RayError, UserCodeException, SystemException) as error:
                return self._after_crash(wave, left, error)
        return Unfinished([], [], "")

    def _after_crash(self, wave: Sequence[str], left: Mapping[str, Work], error: Exception) -> "Unfinished":
        """Tells a stage that cannot start from one that died on some shard, and keeps what was committed."""
        failure = ray.get(self.progress.start_failure.remote())
        if failure is not None:
            raise RunnerError(f"stage {failure}") from error
        begun = ray.get(self.progress.unfinished.remote())
        remaining = self._not_committed(wave, left)
        suspects = [item for name, item in remaining.items() if name in begun] or list(remaining.values())
        others = [item for item in remaining.values() if item not in suspects]
        return Unfinished(suspects, others, _one_line(error))

    def _not_committed(self, wave: Sequence[str], left: Mapping[str, Work]) -> dict[str, Work]:
        """The shards of which this wave still has a cell to compute."""
        cells = [cell for item in left.values() for cell in item.cells if cell.node in wave]
        committed = self.context.store.committed(cells)
        self.outcomes |= {path: Outcome(state="committed") for path in committed}
        lacking = {name for name, item in left.items() for cell in item.cells
                   if cell.node in wave and cell.path not in committed}
        return {name: item for name, item in left.items() if name in lacking}

    def _give_up(self, wave: Sequence[str], work: Work, reason: str) -> None:
        message = f"the worker died {self.cluster.max_restarts + 1} times on this shard: {reason}"
        for cell in work.cells:
            if cell.node in wave and cell.path not in self.outcomes:
                self.outcomes[cell.path] = Outcome(state="failed", message=message)

    def _dataset(self, wave: Sequence[str], work: Sequence[Work]) -> Any:
        rows = [{"work": self._with_outcomes(item).to_json()} for item in work]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        for name in wave:
            dataset = self._through(dataset, self.nodes[name], len(rows))
        return dataset

    def _with_outcomes(self, work: Work) -> Work:
        """The work with what is known of its own cells and of those upstream of them."""
        paths = {path for cell in work.cells for path in (cell.path, *cell.inputs)}
        known = {path: outcome for path, outcome in self.outcomes.items() if path in paths}
        return Work(shard=work.shard, cells=work.cells, outcomes=known)

    def _through(self, dataset: Any, node: Node, shards: int) -> Any:
        pool = self.cluster.pools[node.stage]
        largest = max(pool.min_size, min(pool.max_size, shards))
        return dataset.map_batches(
            StageActor,
            fn_constructor_args=(node, self.context, self.progress, pool.threads),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(
                min_size=pool.min_size,
                max_size=largest,
                max_tasks_in_flight_per_actor=2 * CALLS_PER_ACTOR,
                max_concurrent_calls_per_actor=CALLS_PER_ACTOR,
                enable_true_multi_threading=True,
            ),
            num_cpus=pool.num_cpus,
            num_gpus=pool.num_gpus,
            max_restarts=self.cluster.max_restarts,
            max_task_retries=self.cluster.max_restarts,
        )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Passes snapshots of the progress on while a dataset runs."""
        stop = threading.Event()

        def poll() -> None:
            while not stop.wait(POLL_SECONDS):
                self.report(ray.get(self.progress.snapshot.remote()))

        poller = threading.Thread(target=poll, daemon=True)
        poller.start()
        try:
            yield
        finally:
            stop.set()
            poller.join()
            self.report(ray.get(self.progress.snapshot.remote()))


def run_plan(plan: Plan, context: StageContext, cluster: ClusterConfig, report: Report) -> dict[str, Outcome]:
    """Computes a plan's missing cells; questions first, since images of any prompt may come in any shard."""
    with ray_session(cluster):
        _quieten()
        runner = Runner(plan, context, cluster, report)
        for work in (plan.prompt_work, plan.image_work):
            if work:
                runner.run(work)
        return runner.outcomes


def _machines() -> list[NodeResources]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [NodeResources(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]


def _quieten() -> None:
    """Leaves the terminal to our own progress."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
