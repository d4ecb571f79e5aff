"""A sweep takes little more time than its model.

On Ray, the driver's time per shard is limited; in a single process, the whole sweep is compared with a bare loop.
"""

import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from plumbline.jobs.command import get_command, load_values
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.running import runner, session
from plumbline.pipelines.running.actor import CALLS_PER_ACTOR
from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.benchmarks.driver_rate import NODE, measure
from tests.benchmarks.size import HERE_OPTIONS, choose_size, expect, read_output, run_module

N_SHARDS = choose_size(500, 20)
TINY_OPTIONS = choose_size((), (*HERE_OPTIONS, "benchmark.limit=1"))
N_ROUNDS = choose_size(3, 1)
BARE_LOOP_COMMAND = ("tests.benchmarks.bare_clip", *choose_size((), ("atlas",)))
MAX_DRIVER_MILLISECONDS = 10.0
"""Maximum milliseconds that the driver spends on a shard."""


def test_the_driver_takes_less_than_ten_milliseconds_for_a_shard(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ClusterConfig(num_cpus=2, pools={NODE.name: PoolConfig(num_cpus=0.1)})
    _, ms = measure(cluster, N_SHARDS, CALLS_PER_ACTOR)
    with capsys.disabled():
        print(
            f"\n{N_SHARDS} empty shards: each takes {ms['driver']:.1f} ms of the driver's CPU and "
            f"{ms['ProgressLog']:.1f} ms of the progress log's"
        )
    expect(ms["driver"] < MAX_DRIVER_MILLISECONDS)


Phases = dict[str, float]


@contextmanager
def time_phase(phases: Phases, name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    phases[name] = phases.get(name, 0.0) + time.monotonic() - began


def time_calls(phases: Phases, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call_timed(*arguments: Any, **options: Any) -> Any:
        with time_phase(phases, name):
            return function(*arguments, **options)

    return call_timed


def test_a_small_sweep_prints_the_time_of_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times are printed but not checked. The sweep runs CLIPScore on the embedded benchmark."""
    phases: Phases = {}
    with time_phase(phases, "imports"):
        run_module("tests.benchmarks.sweep_imports")
    values = load_values(
        get_command("sweep"),
        ["sweep=shapes", f"store={tmp_path}/store", "metric=[clipscore]", "cluster=local", *TINY_OPTIONS],
    )
    monkeypatch.setattr(session, "_connect_to_ray", time_calls(phases, "start of Ray", session._connect_to_ray))
    monkeypatch.setattr(ray, "shutdown", time_calls(phases, "end of Ray", ray.shutdown))
    monkeypatch.setattr(runner.Runner, "run", time_calls(phases, "stages", runner.Runner.run))
    computing = ProgressTotals()
    with time_phase(phases, "all"):
        with time_phase(phases, "plan"):
            planned = plan_sweep(read_config(values, SweepConfig))
        with time_phase(phases, "run"):
            finished = run_sweep(planned, computing.add)
        with time_phase(phases, "judging"):
            from plumbline.pipelines.metaeval.metaeval import judge_run

            assert planned.config.protocol is not None
            judge_run(planned.store, finished.run_id, planned.config.protocol)
        with time_phase(phases, "report"):
            from plumbline.pipelines.report.report import write_report

            write_report(planned.store, finished.run_id)
    phases["of the stages, computing"] = max(state.seconds for state in computing.nodes.values())
    phases["fixed"] = phases["all"] - phases["of the stages, computing"]
    with capsys.disabled():
        print("\n" + "\n".join(f"{name:>26} {seconds:5.1f} s" for name, seconds in phases.items()))


MAX_ADDED_SECONDS = 5.0
"""Maximum seconds beyond a bare loop, for the rest of a sweep: plan, cells, judging and report."""
MAX_CPU_RATIO = 1.5
"""Maximum CPU time of the sweep with judging and report, relative to a bare loop that only computes the scores."""
MAX_ADDED_MODULES = 1_000
"""Maximum number of modules that a worker imports beyond those of a bare loop over its model."""


def test_a_small_sweep_in_this_process_takes_little_more_than_a_bare_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep and the loop take turns, and only the fastest of each counts, because a busy machine slows imports."""
    sweep = ["jobs.sweep", "sweep=shapes", "metric=[clipscore]", "cluster=here", *TINY_OPTIONS]
    seconds: dict[str, list[float]] = {"bare": [], "sweep": []}
    cpu_seconds: dict[str, list[float]] = {"bare": [], "sweep": []}
    for number in range(N_ROUNDS):
        for name, command in (("bare", BARE_LOOP_COMMAND), ("sweep", [*sweep, f"store={tmp_path}/{number}"])):
            began, used = time.monotonic(), _read_cpu_seconds()
            printed = run_module(*command)
            seconds[name].append(time.monotonic() - began)
            cpu_seconds[name].append(_read_cpu_seconds() - used)
            if name == "bare":
                bare_modules = json.loads(printed.splitlines()[-1])["modules"]
    worker = read_output("worker_imports")
    bare, ours = (min(each) for each in seconds.values())
    bare_cpu, our_cpu = (min(each) for each in cpu_seconds.values())
    ratio = our_cpu / max(bare_cpu, 0.1)  # at the tiny size, no process is started
    with capsys.disabled():
        print(
            f"\nclipscore on the embedded benchmark: a bare loop takes {bare:.1f} s, the sweep with judging and report "
            f"{ours:.1f} s (target: less than {MAX_ADDED_SECONDS:.0f} s more); CPU time: {bare_cpu:.1f} and "
            f"{our_cpu:.1f} s, a ratio of {ratio:.2f} (target: {MAX_CPU_RATIO}); imported modules: "
            f"{bare_modules} in the loop, {worker['alone']} in a worker without a model, "
            f"{worker['with a model']} with this model"
        )
    expect(ours - bare < MAX_ADDED_SECONDS)
    expect(ratio < MAX_CPU_RATIO)
    expect(not worker["heavy"])
    expect(worker["with a model"] - bare_modules < MAX_ADDED_MODULES)


def _read_cpu_seconds() -> float:
    """Return the CPU time of all processes that this process has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
