"""Pools run together if the cluster can place them, otherwise in waves; an unplaceable pool never starts."""

from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.running.placement import NodeResources, PlacementError, plan_waves

ONE_GPU_NODES = [NodeResources(8, 1)]


def make_pool(cpus: float = 0.5, gpus: float = 0, size: int = 1) -> PoolConfig:
    return PoolConfig(num_cpus=cpus, num_gpus=gpus, min_size=size, max_size=max(size, 4))


def list_waves(machines: list[NodeResources], **pools: PoolConfig) -> list[list[str]]:
    return plan_waves(pools, machines)


def test_pools_that_fit_run_in_parallel() -> None:
    assert list_waves([NodeResources(2, 0)], a=make_pool(), b=make_pool(), c=make_pool()) == [["a", "b", "c"]]


def test_two_models_that_need_the_only_gpu_run_in_waves() -> None:
    assert list_waves(ONE_GPU_NODES, a=make_pool(gpus=1), b=make_pool(gpus=1), c=make_pool()) == [["a"], ["b", "c"]]


def test_fractions_share_a_gpu_but_never_span_two() -> None:
    assert list_waves(ONE_GPU_NODES, a=make_pool(gpus=0.5), b=make_pool(gpus=0.5)) == [["a", "b"]]
    two = [NodeResources(8, 2)]
    assert list_waves(two, a=make_pool(gpus=0.6, size=2), b=make_pool(gpus=0.4, size=2)) == [["a", "b"]]
    assert list_waves(two, a=make_pool(gpus=0.6, size=2), b=make_pool(gpus=0.6)) == [["a"], ["b"]]


def test_an_actor_must_fit_on_one_machine() -> None:
    machines = [NodeResources(8, 1), NodeResources(8, 1)]
    with pytest.raises(PlacementError, match="stage a: 1 actor"):
        list_waves(machines, a=make_pool(gpus=2))
    assert list_waves(machines, a=make_pool(gpus=1, size=2)) == [["a"]]


@pytest.mark.parametrize("size, fits", [(8, True), (9, False)])
def test_the_smallest_size_of_a_pool_must_fit(size: int, fits: bool) -> None:
    machines = [NodeResources(64, 8)]
    if fits:
        assert list_waves(machines, a=make_pool(gpus=1, size=size)) == [["a"]]
    else:
        with pytest.raises(PlacementError, match="machines offer 64 CPUs and 8 GPUs"):
            list_waves(machines, a=make_pool(gpus=1, size=size))


def test_pools_leave_a_fraction_of_a_cpu_for_ray_data() -> None:
    with pytest.raises(PlacementError, match=r"0\.25 CPUs stay free"):
        list_waves([NodeResources(2, 0)], a=make_pool(cpus=1, size=2))
    assert list_waves([NodeResources(2, 0)], a=make_pool(cpus=1), b=make_pool(cpus=1)) == [["a"], ["b"]]


def test_the_refusal_names_the_remedy() -> None:
    with pytest.raises(PlacementError, match="cluster=local needs no GPU"):
        list_waves([NodeResources(2, 0)], answers=make_pool(gpus=1))


A100_NODE = NodeResources(8, 1, frozenset({"A100"}), {"zone": "a"})
L4_NODE = NodeResources(8, 1, frozenset({"L4"}), {"zone": "b"})


@pytest.mark.parametrize(
    ("given", "machine", "decoders"),
    [
        ({"num_gpus": 1.0}, (96.0, 8.0), 12),
        ({"num_gpus": 0.25}, (16.0, 1.0), 16),
        ({"num_gpus": 2.0}, (48.0, 4.0), 24),
        ({"num_gpus": 0.25}, (1.0, 2.0), 1),
        ({"num_cpus": 4.0}, (96.0, 8.0), 4),
        ({"num_cpus": 0.25}, (2.0, 0.0), 1),
        ({"num_gpus": 1.0, "decoders": 20}, (96.0, 8.0), 20),
    ],
)
def test_an_actor_decodes_on_the_cores_of_its_gpus(
    given: dict[str, Any], machine: tuple[float, float], decoders: int
) -> None:
    assert PoolConfig(**given).count_decoders(*machine) == decoders


def make_pool_of_kind(accelerator_type: str | None = None, **labels: str) -> PoolConfig:
    return PoolConfig(num_gpus=1, accelerator_type=accelerator_type, labels=labels)


def test_pools_for_different_kinds_of_gpus_run_in_parallel() -> None:
    assert list_waves([A100_NODE, L4_NODE], a=make_pool_of_kind("A100"), b=make_pool_of_kind("L4")) == [["a", "b"]]
    assert list_waves([A100_NODE, L4_NODE], a=make_pool_of_kind(zone="a"), b=make_pool_of_kind(zone="!a")) == [
        ["a", "b"]
    ]
    assert list_waves(
        [A100_NODE, L4_NODE], a=make_pool_of_kind(zone="in(a, c)"), b=make_pool_of_kind(zone="!in(a, c)")
    ) == [["a", "b"]]
    assert list_waves([A100_NODE, L4_NODE], a=make_pool_of_kind("A100"), b=make_pool_of_kind(zone="a")) == [
        ["a"],
        ["b"],
    ]


def test_an_unrestricted_pool_does_not_run_with_one_whose_only_machine_it_might_take() -> None:
    assert list_waves([A100_NODE, L4_NODE], a=make_pool_of_kind(), b=make_pool_of_kind("A100")) == [["a"], ["b"]]
    assert list_waves([A100_NODE, A100_NODE, L4_NODE], a=make_pool_of_kind(), b=make_pool_of_kind("A100")) == [
        ["a", "b"]
    ]


@pytest.mark.parametrize(
    "pool", [make_pool_of_kind("H100"), make_pool_of_kind(zone="c"), make_pool_of_kind("A100", zone="b")]
)
def test_a_missing_kind_of_machine_is_refused_by_name(pool: PoolConfig) -> None:
    with pytest.raises(PlacementError, match=r"(H100 GPUs|zone=\w) cannot be placed; the machines of that kind offer"):
        list_waves([A100_NODE, L4_NODE], a=pool)


def test_a_nodes_own_pool_takes_precedence_over_its_stages_pool_and_the_default() -> None:
    answers, large, default = make_pool(1), make_pool(2), make_pool(3)
    cluster = ClusterConfig(pools={"answers": answers, "answers:large": large}, default=default)
    assert [cluster.find_pool(node) for node in ("answers:large", "answers:vqa", "new")] == [large, answers, default]


@pytest.mark.parametrize(
    "name, nearest", [("anwers", "answers"), ("answers:lrge", "answers:large"), ("answrs:large", "answers:large")]
)
def test_a_pool_for_an_unknown_node_or_stage_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    cluster = ClusterConfig(pools={"answers": make_pool(), "answers:large": make_pool(), name: make_pool()})
    with pytest.raises(ConfigError, match=f"{name}'; did you mean .*{nearest}"):
        cluster.check_pools(["answers", "scores"], ["large"])
