"""The runner computes a plan's missing cells in Ray Data actor pools. No work is lost if a process dies."""

import getpass
import logging
import socket
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import ray
from ray.data import DataContext
from ray.data.exceptions import SystemException, UserCodeException
from ray.exceptions import RayError
from ray.util.annotations import RayDeprecationWarning
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plumbline.operators.base.stopping import STOP_REQUESTED
from plumbline.operators.stages.stage import RowKind
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import find_level, get_field, log_worker_lines
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running.actor import CALLS_PER_ACTOR, RunSettings, StageActor
from plumbline.pipelines.running.driver_environment import open_sweep_environment
from plumbline.pipelines.running.errors import RESUME_HINT, RunnerError, format_error
from plumbline.pipelines.running.events import PhaseStarted, Watch
from plumbline.pipelines.running.in_process import compute_quick_cells
from plumbline.pipelines.running.machines import (
    RAY_NAMESPACE,
    NoRoomError,
    ReservedRoom,
    choose_next_wave,
    reserve_room,
)
from plumbline.pipelines.running.process import defer_stop_signals
from plumbline.pipelines.running.progress import ProgressLog
from plumbline.pipelines.running.ray_internals import call_while_actors_wait, make_pool_arguments
from plumbline.pipelines.running.session import open_ray_session
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.store.cells import Outcome, Work, dump_bundle, load_bundle

LOG = logging.getLogger(__name__)
POLL_INTERVAL = 0.25
ROOM_CHECK_INTERVAL = 2.0
"""Seconds between checks that a wave still has room on the cluster."""
END_TIMEOUT = 30.0
STOP_TIMEOUT = 60.0
"""Seconds allowed for workers to finish their batches and save complete rows when a run stops."""
MAX_BUNDLE_SHARDS = 16
"""Maximum number of shards that a worker receives at a time."""
MIN_BUNDLES_PER_WORKER = 200
"""Minimum number of bundles per worker of a wave's largest pool, if there are enough shards."""
MAX_FRUITLESS_RETRIES = 3
"""Maximum number of consecutive attempts at a wave that commit no new cell; the run then fails."""


class LostWaveError(Exception):
    """Raised if a wave ends early because Ray or a machine failed, and not because of an error in a cell."""


class Runner:
    """Computes the work of a plan and collects the outcome of every cell."""

    def __init__(self, nodes: Sequence[Node], settings: RunSettings, cluster: ClusterConfig, watch: Watch) -> None:
        self.settings = settings
        self.cluster = cluster
        self.watch = watch
        self.pools = {node.name: node.find_pool(cluster) for node in nodes}
        self.nodes = {node.name: node for node in nodes}
        self.outcomes: dict[str, Outcome] = {}

    def run(self, work: Sequence[Work]) -> None:
        """Compute the cells, node by node in waves of pools, and add their outcomes to `outcomes`.

        A wave is a set of pools that run at the same time. If machines are lost during a wave, the wave's remaining
        cells are retried on the other machines.
        """
        needed = {cell.node for item in work for cell in item.cells if cell.path not in self.outcomes}
        pools = {name: pool for name, pool in self.pools.items() if name in needed}
        failures = 0
        while pools:
            wave = choose_next_wave(pools, self.cluster.wait_seconds)
            known = len(self.outcomes)
            try:
                self._run_wave(wave, work, repeated=failures > 0)
            except LostWaveError as error:
                LOG.warning(
                    "stages %s were interrupted, so their remaining cells are retried: %s", ", ".join(wave), error
                )
                failures = failures + 1 if len(self.outcomes) == known else 1
                if failures == MAX_FRUITLESS_RETRIES:
                    raise RunnerError(
                        f"the cluster gave up on stage(s) {', '.join(wave)} ({error}); {RESUME_HINT}"
                    ) from error
                ray.get(self.settings.progress.note_interruption.remote())
            else:
                pools = {name: pool for name, pool in pools.items() if name not in wave}
                failures = 0

    def _run_wave(self, wave: Sequence[str], work: Sequence[Work], *, repeated: bool) -> None:
        left = {cell.path for item in work for cell in item.cells if cell.node in wave} - self.outcomes.keys()
        shards = [item for item in work if any(cell.path in left for cell in item.cells)]
        waiting = Counter(node for item in shards for node in {cell.node for cell in item.cells if cell.path in left})
        self.watch(PhaseStarted(f"starting the workers of {', '.join(wave)}"))
        LOG.info("starting stages %s on %d shards", ", ".join(wave), len(shards))
        progress = self.settings.progress
        ray.get(progress.set_waiting.remote(dict(waiting)))
        # The driver needs milliseconds for each task, however many shards it has. But every worker must get many
        # bundles, so that all workers finish at about the same time.
        enough = MIN_BUNDLES_PER_WORKER * max(self.pools[name].max_size for name in wave)
        bundle_size = self.cluster.bundle or max(1, min(len(shards) // enough, MAX_BUNDLE_SHARDS))
        bundles = [shards[start : start + bundle_size] for start in range(0, len(shards), bundle_size)]
        pools = {
            # more actors than bundles would have nothing to do
            name: replace(pool, min_size=min(pool.min_size, len(bundles)), max_size=min(pool.max_size, len(bundles)))
            for name, pool in ((name, self.pools[name]) for name in wave)
        }
        with defer_stop_signals() as raise_now, self._forward_reports_in_background(raise_now):
            try:
                storage = self.settings.store.place.storage
                with reserve_room(pools) as room:
                    settings = replace(self.settings, repeated=repeated)
                    for row in self._make_dataset(room, bundles, settings).iter_rows():
                        for done in load_bundle(row["bundle"], storage):
                            self.outcomes |= done.outcomes
            except (RayError, UserCodeException, SystemException, NoRoomError) as error:
                failure = ray.get(progress.find_start_failure.remote())
                if failure is not None:
                    raise RunnerError(f"stage {failure}") from error
                raise LostWaveError(format_error(error)) from error

    def _make_dataset(self, room: ReservedRoom, bundles: Sequence[Sequence[Work]], settings: RunSettings) -> Any:
        """Return a dataset with a row and a task for each bundle of shards."""
        call_while_actors_wait(room.poll, ROOM_CHECK_INTERVAL)
        rows = [{"bundle": dump_bundle([self._add_outcomes(work) for work in works])} for works in bundles]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        # `ray_remote_args_fn` is the only way to place the actors of a pool one by one; Ray names no successor
        warnings.filterwarnings("ignore", "`ray_remote_args_fn` is deprecated", RayDeprecationWarning)
        for name, pool in room.pools.items():
            dataset = dataset.map_batches(
                type(name, (StageActor,), {}),  # Ray's dashboard shows the name
                fn_constructor_args=(self.nodes[name], pool, settings),
                batch_size=1,  # a pool with GPUs may not leave it out
                batch_format="numpy",
                **make_pool_arguments(pool.min_size, pool.max_size, CALLS_PER_ACTOR),
                num_cpus=pool.num_cpus,
                num_gpus=pool.num_gpus,
                accelerator_type=pool.accelerator_type,
                label_selector=dict(pool.labels) or None,
                ray_remote_args_fn=room.make_options(name),
            )
        return dataset

    def _add_outcomes(self, work: Work) -> Work:
        """Return the work with the outcomes of upstream cells that were not committed, which workers need."""
        inputs = {path for cell in work.cells for path in cell.upstream} & self.outcomes.keys()
        return replace(work, outcomes={p: self.outcomes[p] for p in inputs if self.outcomes[p].state != "committed"})

    @contextmanager
    def _forward_reports_in_background(self, raise_now: Callable[[], None]) -> Iterator[None]:
        """Forward the workers' reports while a dataset runs; if a stop is requested, interrupt the dataset.

        Before the interruption, workers have up to STOP_TIMEOUT to save the complete rows of their shards.
        """
        ended = threading.Event()

        def poll() -> None:
            while not ended.wait(POLL_INTERVAL):
                self._forward_reports()
                if STOP_REQUESTED.is_set():
                    self._await_workers(ended)
                    raise_now()
                    return

        poller = threading.Thread(target=copy_context().run, args=(poll,), daemon=True)
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join()
            self._forward_reports()

    def _await_workers(self, ended: threading.Event) -> None:
        """Tell workers to save the complete rows of their shards, and wait up to STOP_TIMEOUT seconds for them."""
        deadline = time.monotonic() + STOP_TIMEOUT
        with suppress(RayError):
            ray.get(self.settings.progress.stop.remote())
            while ray.get(self.settings.progress.has_shards_in_progress.remote()) and time.monotonic() < deadline:
                if ended.wait(POLL_INTERVAL):
                    return

    def _forward_reports(self) -> None:
        """Forward the workers' reports. If Ray itself has failed, do nothing: the main thread reports the failure."""
        with suppress(RayError):
            unread = ray.get(self.settings.progress.take_unread_reports.remote())
            for event in unread.events:
                self.watch(event)
            log_worker_lines(unread.lines)


def run_workload(workload: Workload, cluster: ClusterConfig, watch: Watch) -> dict[str, Outcome]:
    """Compute the missing cells for prompts, then for pairs, then for images; return their outcomes by path.

    The order matters: cells for pairs and images may read cells that were computed before them.
    """
    first = compute_quick_cells(workload, cluster, watch)
    try:
        with (
            open_ray_session(cluster) as cluster,
            open_sweep_environment(workload) as environment,
            start_progress_log(_describe_sweep(workload)) as progress,
        ):
            silence_ray_data()
            if not any(plan.renewed for plan in workload.plans.values()):
                # otherwise cells computed in the last round would count as cached
                progress.add_cached.remote({item.node.name: item.cells - item.missing for item in workload.nodes})
            settings = RunSettings(
                store=workload.store,
                contexts=workload.contexts,
                environment=environment,
                progress=progress,
                max_attempts=cluster.max_attempts,
                log_level=find_level(),
            )
            runner = Runner([item.node for item in workload.nodes if item.missing], settings, cluster, watch)
            runner.outcomes |= first
            for kind in get_args(RowKind):
                runner.run(list(workload.iterate_shards_with_work(kind)))
            return runner.outcomes
    except RayError as error:
        raise RunnerError(f"Ray failed ({format_error(error)}); {RESUME_HINT}") from error


def _describe_sweep(workload: Workload) -> str:
    run = f"run {get_field('run')} " if get_field("run") else ""
    with suppress(OSError, KeyError):  # the user may have no name
        run += f"by {getpass.getuser()} "
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    location = f"on {socket.gethostname()} since {began}, store {workload.store.place.url}"
    return f"{' and '.join(workload.plans)} ({run}{location})"


@contextmanager
def start_progress_log(sweep: str) -> Iterator[Any]:
    """Yield a new ProgressLog on the driver's machine, because the run cannot continue without that machine.

    The actor's name is unique in the cluster and begins with this driver's job id.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    lasting = ray.remote(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)(ProgressLog)
    name = f"{ray.get_runtime_context().get_job_id()}-{uuid.uuid4().hex}"
    progress = lasting.options(name=name, namespace=RAY_NAMESPACE).remote(sweep)
    try:
        yield progress
    finally:
        with suppress(RayError):  # end it gracefully, so that its last counts reach Ray, which collects them every 10 s
            ray.get(progress.__ray_terminate__.options(max_task_retries=0).remote(), timeout=END_TIMEOUT)
        ray.kill(progress)


def silence_ray_data() -> None:
    """Keep Ray Data's output off the terminal. Its errors are still raised, and its own log has their tracebacks."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    log = logging.getLogger("ray.data")
    log.setLevel(logging.ERROR)
    for handler in [*log.handlers]:
        if isinstance(handler, logging.StreamHandler):
            log.removeHandler(handler)
