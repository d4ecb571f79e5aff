"""The executor is chosen once: a small plan runs in this process, unless a Ray cluster is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.events import (
    CallsAnswered,
    CellsExpected,
    NodeProgress,
    ProgressTotals,
    ShardFinished,
    ShardStarted,
    combine_displays,
)
from plumbline.pipelines.running.executor import choose_executor
from plumbline.pipelines.running.in_process import compute_quick_cells
from plumbline.pipelines.running.workload import get_max_small_plan_calls
from plumbline.pipelines.sweeps.computing import make_workload
from tests.bench_of import plan_bench, write_benchmark

AUTO_CONFIG = ClusterConfig(executor="auto", pools={})


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("bench")
    return plan_bench(write_benchmark(folder, count=4), folder / "store").plan


@pytest.mark.parametrize(
    ("changes", "on_ray"),
    [
        ({}, False),
        ({"executor": "here", "address": "auto"}, False),
        ({"executor": "ray"}, True),
        ({"address": "head:6379"}, True),
        ({"pools": {"answers": PoolConfig(num_gpus=1)}}, True),
        ({"pools": {"questions": PoolConfig(num_gpus=1)}}, False),  # a template asks, not a model
    ],
)
def test_a_small_plan_is_computed_here_unless_ray_is_named_or_a_gpu_is_needed(
    changes: dict[str, Any], on_ray: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert choose_executor(replace(AUTO_CONFIG, **changes), plan.nodes).on_ray == on_ray


def test_ray_is_used_if_the_environment_names_a_cluster_or_the_plan_is_large(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    large = [item._replace(model_calls=get_max_small_plan_calls()) for item in plan.nodes]
    assert choose_executor(AUTO_CONFIG, large).on_ray
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert choose_executor(AUTO_CONFIG, plan.nodes).on_ray


def test_totals_sum_the_rounds_without_the_time_between_them() -> None:
    totals = ProgressTotals([CellsExpected("scores", cells=2, calls=4), ShardStarted("scores", at=10.0)])
    totals.add(CallsAnswered("scores", 3))
    totals.add(ShardFinished("scores", cells=1, rows=5, failed_rows=1, worked=1.0, waited=0.5, at=12.0))
    totals.add(ShardFinished("scores", cells=2, rows=5, failed_rows=0, worked=2.0, waited=0.25, at=13.0))
    assert totals.nodes["scores"] == NodeProgress(
        cells=2, rows=10, failed_rows=1, seconds=3.0, worked=3.0, waited=0.75, calls=3, missing=2, expected_calls=4
    ), "a shard that was reported twice is counted once"
    totals.add(CellsExpected("scores", cells=1, calls=2))
    totals.add(ShardStarted("scores", at=100.0))
    totals.add(ShardFinished("scores", cells=1, rows=1, failed_rows=0, at=101.0))
    assert totals.nodes["scores"][:4] == (3, 11, 1, 4.0)
    assert totals.nodes["scores"][-3:] == (3, 3, 6)


def test_a_display_that_fails_is_logged_once_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: object) -> None:
        raise BrokenPipeError("nobody reads")

    seen: list[object] = []
    watch = combine_displays(fail, seen.append)
    events = [ShardStarted("scores", at=1.0), ShardStarted("scores", at=2.0)]
    for event in events:
        watch(event)
    assert seen == events and len(caplog.records) == 1


@pytest.mark.parametrize(("cluster", "expected"), [("auto", {"questions", "entailment"}), ("local", set())])
def test_with_cluster_auto_models_of_few_prompts_run_here_without_workers(
    cluster: str, expected: set[str], tmp_path: Path
) -> None:
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=3)
    planned = plan_bench(bench, tmp_path / "store", "metric=[gecko]", f"cluster={cluster}")
    workload = make_workload([planned])
    outcomes = compute_quick_cells(workload, planned.config.cluster, lambda event: None)
    assert {
        cell.stage
        for work in workload.iterate_shards_with_work("prompts")
        for cell in work.cells
        if cell.path in outcomes
    } == expected
    assert all(outcome.state == "committed" for outcome in outcomes.values())
