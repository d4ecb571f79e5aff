"""Measures the cost of a shard for the driver, the ProgressLog and a worker, with 200 concurrent calls.

`python -m tests.benchmarks.driver_rate [SHARDS] [WORKERS] [CALLS]` runs a stage that does nothing, under the real
runner. It starts WORKERS processes (default 8) with CALLS concurrent calls each (default 25); each call reports like a
separate worker. CPU seconds are counted after the first tenth of the shards, so that startup is not included.
"""

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray

from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.running import actor, runner, session
from plumbline.pipelines.running.driver_environment import DriverEnvironment
from plumbline.pipelines.running.events import Event, ProgressTotals
from plumbline.pipelines.store.cells import Cell, Outcome, Shard, Work
from plumbline.pipelines.store.store import Store

DEFAULT_SHARDS, DEFAULT_WORKERS, DEFAULT_CALLS = 3_200, 8, 25
BUNDLE_SIZES = (1, 4, 16)
N_EMPTY_CALLS = 20
"""Number of rounds of concurrent calls that each worker makes to an actor that does nothing."""
N_ROWS = 256
METRICS = ("vqascore", "other")
NODE = Node(name="answers:vqa", stage="answers", models={}, metrics={})
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.1
ROLE_BY_PROCESS_TITLE = {
    "ray::ProgressLog": "ProgressLog",
    "ray::MapWorker": "workers",
    "gcs_server": "Ray",
    "raylet/raylet": "Ray",
}


def load_no_stages(*_: Any, **__: Any) -> dict[str, Any]:
    """Return no stages; this replaces the function that loads the stages of a worker."""
    return {}


class EmptyActor(actor.StageActor):
    """A worker that computes nothing, but reports every cell as committed."""

    def __init__(self, node: Node, pool: PoolConfig, terms: actor.RunSettings, calls: int) -> None:
        actor.make_stages, actor.CALLS_PER_ACTOR = load_no_stages, calls  # type: ignore[attr-defined]
        super().__init__(node, pool, terms)

    def _compute_cells(self, work: Work, *_: Any) -> dict[str, Outcome]:
        self.calls.add(work.shard.rows)
        return {cell.path: Outcome(state="committed", rows=work.shard.rows) for cell in work.cells}


def make_work(number: int) -> Work:
    """Return a shard with two cells; neither is ever read."""
    name = f"{number:06}"
    place = Place("/b", StorageConfig())
    shard = Shard(group="atlas", name=name, place=place, size=1, etag="1", row_groups=(number,), rows=N_ROWS)
    cells = tuple(
        Cell(node=NODE.name, stage=NODE.stage, metric=metric, key=name, path=f"answers/{metric}/{name}", inputs={})
        for metric in METRICS
    )
    return Work(shard=shard, cells=cells, outcomes={}, benchmark="b")


def read_cpu_seconds() -> Mapping[str, float]:
    """Return the CPU seconds of this process and its descendants, keyed by role.

    A role is "driver" or a value of ROLE_BY_PROCESS_TITLE.
    """
    seconds: dict[int, float] = {}
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    taken = defaultdict(float, driver=seconds[os.getpid()])
    for pid, command in commands.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        role = next((role for mark, role in ROLE_BY_PROCESS_TITLE.items() if mark in command), None)
        if above == os.getpid() and role is not None:
            taken[role] += seconds[pid]
    return taken


class CpuSamples:
    """CPU seconds used so far by each role (driver, ProgressLog, workers, Ray), sampled while shards finish."""

    def __init__(self) -> None:
        self.totals = ProgressTotals()
        self.taken: list[tuple[int, float, Mapping[str, float]]] = []

    def watch(self, event: Event) -> None:
        self.totals.add(event)

    @contextmanager
    def sample_repeatedly(self) -> Iterator[None]:
        stop = threading.Event()

        def sample() -> None:
            while True:
                ended = stop.wait(SAMPLE_SECONDS)
                rows = self.totals.nodes[NODE.name].rows if NODE.name in self.totals.nodes else 0
                self.taken.append((rows // N_ROWS, time.monotonic(), read_cpu_seconds()))
                if ended:
                    return

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        yield
        stop.set()
        sampler.join()

    def average(self, shards: int) -> tuple[float, Mapping[str, float]]:
        """Return shards per second, and each role's CPU milliseconds per shard, after the first tenth of the shards."""
        first = next(sample for sample in self.taken if sample[0] >= shards / 10)
        last = max((sample for sample in self.taken if sample[2]["workers"] >= first[2]["workers"]), key=lambda s: s[0])
        count = max(1, last[0] - first[0])
        spent = {role: 1000 * (last[2][role] - first[2][role]) / count for role in last[2]}
        return count / max(SAMPLE_SECONDS, last[1] - first[1]), spent


class IdleActor:
    def ignore(self, _: object) -> None:
        pass

    def read_cpu_seconds(self) -> float:
        return time.process_time()


def send_calls(idle: Any, calls: int, rounds: int) -> None:
    """Send `calls` concurrent calls to an idle actor and wait for all replies; repeat this `rounds` times."""
    with ThreadPoolExecutor(calls) as pool:
        for _ in range(rounds):
            list(pool.map(lambda _: ray.get(idle.ignore.remote(None)), range(calls)))


def measure_empty_call(cluster: ClusterConfig, workers: int, calls: int) -> float:
    """Return the CPU milliseconds per call that an idle actor spends when this number of workers calls it."""
    with session.open_ray_session(cluster):
        idle = ray.remote(num_cpus=0)(IdleActor).remote()
        callers = ray.remote(num_cpus=0.01)(send_calls)
        ray.get([callers.remote(idle, calls, 1) for _ in range(workers)])
        before = ray.get(idle.read_cpu_seconds.remote())
        ray.get([callers.remote(idle, calls, N_EMPTY_CALLS) for _ in range(workers)])
        spent: float = ray.get(idle.read_cpu_seconds.remote()) - before
    return 1000 * spent / (workers * calls * N_EMPTY_CALLS)


def main(shards: int = DEFAULT_SHARDS, workers: int = DEFAULT_WORKERS, calls: int = DEFAULT_CALLS) -> None:
    empty = measure_empty_call(ClusterConfig(num_cpus=2), workers, calls)
    print(f"An empty call costs its actor {empty:.2f} ms of CPU, with {workers * calls} calls at once.")
    pool = PoolConfig(num_cpus=0.01, min_size=workers, max_size=workers)
    print(f"{shards} shards of {len(METRICS)} cells, {workers} worker processes, each with {calls} calls at once.")
    print("The columns from driver to Ray are ms of CPU per shard.")
    print(
        "| shards per task | driver | ProgressLog | worker | Ray | shards/s measured | shards/s with dedicated cores |"
    )
    print("|---|---|---|---|---|---|---|")
    for bundle in BUNDLE_SIZES:
        cluster = ClusterConfig(num_cpus=2, bundle=bundle, pools={NODE.name: pool})
        rate, ms = measure(cluster, shards, calls)
        own = 1000 / max(ms["driver"], ms["ProgressLog"])
        taken = " | ".join(f"{ms[role]:.2f}" for role in ("driver", "ProgressLog", "workers", "Ray"))
        print(f"| {bundle} | {taken} | {rate:.0f} | {own:.0f} |", flush=True)


def make_actor(calls: int) -> type[EmptyActor]:
    """Return a subclass of EmptyActor that serves this number of concurrent calls."""

    class CountingActor(EmptyActor):
        def __init__(self, node: Node, pool: PoolConfig, terms: actor.RunSettings) -> None:
            super().__init__(node, pool, terms, calls)

    return CountingActor


def measure(cluster: ClusterConfig, shards: int, calls: int) -> tuple[float, Mapping[str, float]]:
    """Run `shards` shards; return shards per second, and CPU milliseconds per shard, keyed by role.

    Each worker serves `calls` calls at once.
    """
    samples = CpuSamples()
    store = Store(Place("/b", StorageConfig()))
    nothing = DriverEnvironment(variables={}, probes=())
    with (
        patch.multiple(runner, CALLS_PER_ACTOR=calls, StageActor=make_actor(calls)),
        session.open_ray_session(cluster),
        runner.start_progress_log("a benchmark") as progress,
    ):
        runner.silence_ray_data()
        terms = actor.RunSettings(store=store, contexts={}, environment=nothing, progress=progress, max_attempts=1)
        running = runner.Runner([NODE], terms, cluster, samples.watch)
        with samples.sample_repeatedly():
            running.run([make_work(number) for number in range(shards)])
        assert len(running.outcomes) == shards * len(METRICS)
    return samples.average(shards)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
