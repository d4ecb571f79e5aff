"""The runner: a plan's missing cells through Ray Data actor pools, with nothing lost when a worker dies."""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import SystemException, UserCodeException
from ray.exceptions import RayError

from operators.batches import device_lost
from operators.errors import PlumblineError, RowError, without_secrets
from pipelines.cells.cells import Cell, Outcome, Work
from pipelines.cells.plan import Node, Plan
from pipelines.cells.store import BrokenCell
from pipelines.config import ClusterConfig, PoolConfig
from pipelines.running.placement import NodeResources, plan_waves
from pipelines.running.progress import History, NodeProgress, ProgressLog
from pipelines.running.stages import RowByRow, StageContext, StageRunner, start_stage

CALLS_PER_ACTOR = 2
"""One call computes while the other reads and decodes the next shard, or commits the last one."""
POLL_SECONDS = 0.25
DEADLY_ROW = RowError(
    "killed_worker",
    "the process that worked on this row died, or went over the pool's deadline; look at the image, or give the stage "
    "more memory or time (cluster.pools)",
    retryable=True,
)
KEPT = "what was computed is committed: run the same command to go on"
LAST_WORDS = (
    f"error: this process was ended, by Ray because its own processes died (raylet or GCS), or by the system; {KEPT}"
)
START_SECONDS = "180"
"""That Ray's processes may take to start; RAY_raylet_start_wait_time_s sets another number."""
NOT_STARTED = (
    "Ray could not be started on this machine ({error}); it may be busy, or short of memory or disk: run again, and "
    f"where it starts too slowly set RAY_raylet_start_wait_time_s above {START_SECONDS}"
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, as malloc.h numbers them."""
LARGEST_KEPT = 32 << 20
"""Bytes; the most that glibc admits."""
MOST_KEPT = 1 << 30
"""Bytes at the top of the heap."""

Report = Callable[[Mapping[str, NodeProgress]], None]


class RunnerError(PlumblineError):
    """A stage cannot run at all."""


class StageActor:
    """One actor of a node's pool: loads its model once, then turns shards into committed cells."""

    def __init__(self, node: Node, context: StageContext, progress: Any, pool: PoolConfig, max_attempts: int) -> None:
        self.node = node
        self.store = context.store
        self.limits = context.limits
        self.progress = progress
        self.max_attempts = max_attempts
        self.deadline = pool.deadline
        self.computing = threading.Lock()
        self.turns = Turns(CALLS_PER_ACTOR)
        unfinished = ray.get(progress.starting.remote(node.name))
        try:
            if unfinished > pool.max_size + max_attempts:
                raise RunnerError(f"its workers died {unfinished} times while loading; they may lack memory")
            _keep_freed_memory()
            if pool.threads is not None and node.model is not None:
                _set_torch_threads(pool.threads)
            self.stage: StageRunner = start_stage(node, context)
        except Exception as error:
            ray.get(progress.failed_to_start.remote(node.name, _one_line(error)))
            raise
        ray.get(progress.ready.remote(node.name))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """One row of the dataset, a Work as JSON, back with the outcomes of this node's cells.

        Ray starts a dead actor again and gives it the same rows; a shard that was begun before is worked on alone and
        row by row, so that the next death tells which row to leave out. After `max_attempts` deaths it fails untried.
        """
        work = Work.from_json(str(batch["work"][0]))
        cells = [cell for cell in work.cells if cell.node == self.node.name]
        if not cells:
            return batch
        name = shard_name(work)
        history = ray.get(self.progress.history.remote(self.node.name, name))
        if history.begun >= self.max_attempts:
            failure = Outcome(state="failed", message=f"the worker died {history.begun} times on this shard")
            mine = {cell.path: failure for cell in cells}
        else:
            with self.turns.alone() if history.begun else self.turns.shared():
                ray.get(self.progress.started.remote(self.node.name, name))
                mine = self._outcomes(work, cells, history)
        self.progress.finished.remote(self.node.name, name, work.shard.rows, list(mine.values()))
        return {"work": [replace(work, outcomes={**work.outcomes, **mine}).to_json()]}

    def _outcomes(self, work: Work, cells: Sequence[Cell], history: History) -> dict[str, Outcome]:
        """What became of each cell; a failure of the whole shard fails its cells and nothing else."""
        blocked = {cell.path: failure for cell in cells if (failure := failed_input(cell, work.outcomes))}
        able = [cell for cell in cells if cell.path not in blocked]
        if not able:
            return blocked
        try:
            if history.begun and isinstance(self.stage, RowByRow):
                tables = self._row_by_row(self.stage, work, able, history)
            else:
                tables = self._whole(work, able)
        except Exception as error:
            if device_lost(error):
                os._exit(1)  # no later call of this process can use the device; Ray starts another one
            return blocked | {cell.path: failure_of(error) for cell in able}
        return blocked | {cell.path: self._save(cell, tables[cell.metric]) for cell in able}

    def _save(self, cell: Cell, table: pa.Table) -> Outcome:
        """A cell that cannot be saved has failed, and the others of its shard have not."""
        try:
            return self.store.save(cell, table, limits=self.limits.semantic())
        except Exception as error:
            return failure_of(error)

    def _whole(self, work: Work, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        with self._deadline():
            prepared = self.stage.prepare(work, cells)
        with nullcontext() if self.stage.side_by_side else self.computing, self._deadline():
            return self.stage.compute(prepared, cells)

    def _row_by_row(
        self, stage: RowByRow, work: Work, cells: Sequence[Cell], history: History
    ) -> Mapping[str, pa.Table]:
        """The tables of a shard that ended its process before; each row is announced before it is touched."""
        name = shard_name(work)
        tables = []
        for row in range(work.shard.rows):
            if row in history.deadly:
                tables.append(self.stage.compute(stage.refuse_row(work, cells, row, DEADLY_ROW), cells))
                continue
            ray.get(self.progress.started_row.remote(self.node.name, name, row))
            with self._deadline():
                tables.append(self.stage.compute(stage.prepare_row(work, cells, row), cells))
        ray.get(self.progress.started_row.remote(self.node.name, name, None))
        return {cell.metric: pa.concat_tables([table[cell.metric] for table in tables]) for cell in cells}

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Ends the process if the body takes longer than the pool's deadline: nothing else ends a call that hangs."""
        if self.deadline is None:
            yield
            return
        alarm = threading.Timer(self.deadline, os._exit, [1])
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()


class Turns:
    """Lets calls run side by side, or one of them alone."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = threading.Semaphore(places)
        self.claiming = threading.Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self.claiming:
            self.free.acquire()
        try:
            yield
        finally:
            self.free.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self.claiming:
            for _ in range(self.places):
                self.free.acquire()
        try:
            yield
        finally:
            self.free.release(self.places)


def failed_input(cell: Cell, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """The failure of a cell upstream, passed on."""
    failures = [outcomes[path] for path in cell.inputs if path in outcomes and outcomes[path].state == "failed"]
    return failures[0] if failures else None


def failure_of(error: Exception) -> Outcome:
    """Of a cell, with the cell upstream that it failed of where that is to be computed anew."""
    broken = (error.path,) if isinstance(error, BrokenCell) else ()
    return Outcome(state="failed", message=_one_line(error), broken=broken)


def shard_name(work: Work) -> str:
    """What a shard is called in progress and messages."""
    return f"{work.shard.group}/{work.shard.name}"


def _one_line(error: BaseException) -> str:
    """The error for a person: a PlumblineError speaks for itself, anything else with its type and place."""
    text = without_secrets(" ".join(str(error).split()))
    if isinstance(error, PlumblineError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" (in {place.name}, {Path(place.filename).name}:{place.lineno})" if place else ""
    return f"{type(error).__name__}: {text}{where}"


def _keep_freed_memory() -> None:
    """Tells glibc, where that is the C library, to keep freed memory for the next batch.

    By default every large tensor on the CPU is a fresh mapping, and faulting its pages in takes up to a third of a
    small model's time; threads other than the first suffer most.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def _set_torch_threads(threads: int) -> None:
    import torch  # only in actors: the driver never imports it

    torch.set_num_threads(threads)


@contextmanager
def ray_session(cluster: ClusterConfig) -> Iterator[None]:
    """The given cluster, or else a local Ray of our own, which is shut down at the end."""
    if ray.is_initialized():
        yield
        return
    with last_words(LAST_WORDS):
        _connect(cluster.address or os.environ.get("RAY_ADDRESS") or "local", cluster)
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def last_words(line: str) -> Iterator[None]:
    """Has a line said on stderr should this process end within the body without a chance to say anything.

    Ray's core ends its driver so, where the raylet or the GCS died, and the system a process that takes all memory. The
    line is said by a shell that waits for a word at a pipe, and finds the pipe closed instead.
    """
    reading, writing = os.pipe()
    guard = subprocess.Popen(["/bin/sh", "-c", 'read -r word || echo "$0" >&2', line], stdin=reading)
    os.close(reading)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # the guard may have been told to end, as its whole group was
            os.write(writing, b"\n")
        os.close(writing)
        guard.wait()


def _connect(address: str, cluster: ClusterConfig) -> None:
    local: dict[str, Any] = {"num_cpus": cluster.num_cpus, "include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", START_SECONDS)
    try:
        _check_port(address)
        with _quiet_backend(), _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except Exception as error:  # Ray raises a bare Exception where its processes do not start in time
        if address == "local":
            raise RunnerError(NOT_STARTED.format(error=_one_line(error))) from error
        token = "AuthToken" in "".join(traceback.format_exception(error))
        remedy = "set RAY_AUTH_MODE=token and the cluster's token" if token else "check cluster.address or RAY_ADDRESS"
        raise RunnerError(f"Ray at {address!r}: cannot be reached ({_one_line(error)}); {remedy}") from error


def _check_port(address: str) -> None:
    """Raises OSError at once where nothing listens at host:port; Ray itself goes on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps what the caller does on SIGTERM, which Ray would replace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _quiet_backend() -> Iterator[None]:
    """Keeps Ray's C++ core from writing to the terminal, where it warns of every restartable actor.

    It announces even being told so; its errors still arrive as exceptions, and RAY_BACKEND_LOG_LEVEL overrides.
    """
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


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
                    f"the cluster gave up on stage(s) {', '.join(wave)} ({_one_line(error)}); {KEPT}"
                ) from error

    def _dataset(self, wave: Sequence[str], work: Sequence[Work]) -> Any:
        rows = [{"work": self._with_outcomes(item).to_json()} for item in work]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        for name in wave:
            dataset = self._through(dataset, self.nodes[name], len(rows))
        return dataset

    def _with_outcomes(self, work: Work) -> Work:
        """The work with what is known of the cells upstream of its own."""
        inputs = {path for cell in work.cells for path in cell.inputs}
        return replace(work, outcomes={path: self.outcomes[path] for path in inputs & self.outcomes.keys()})

    def _pool(self, node: Node) -> PoolConfig:
        """The stage's pool; a node without a model of its own on this machine needs no GPU."""
        pool = self.cluster.pools[node.stage]
        return pool if node.model is not None and node.model.family != "openai" else replace(pool, num_gpus=0)

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
        raise RunnerError(f"Ray failed ({_one_line(error)}); {KEPT}") from error


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
