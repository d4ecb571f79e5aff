"""A run reserves resources for all its pools at once; otherwise it waits, and reports once for which runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.running.machines import (
    WAIT_NOTICE_SECONDS,
    NoRoomError,
    RoomWatch,
    describe_resources,
    reserve_room,
)
from tests.faults.driving import wait_until


def test_a_run_that_waits_for_a_while_reports_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    watch = RoomWatch(["answers", "scores"], lambda: "0 of 4 CPUs are free", clock=lambda: time[0])

    def poll_at(at: float) -> str:
        time[0] = at
        watch.update(waiting=True)
        return capsys.readouterr().err

    assert poll_at(0) == ""
    assert poll_at(WAIT_NOTICE_SECONDS - 1) == ""
    assert poll_at(WAIT_NOTICE_SECONDS).startswith(
        "waiting for room on the cluster for answers, scores: 0 of 4 CPUs are free; the run continues by itself"
    )
    assert poll_at(9 * WAIT_NOTICE_SECONDS) == ""


def test_a_stage_that_gets_resources_in_between_is_not_reported_as_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    watch = RoomWatch(["scores"], lambda: "", clock=lambda: time[0])
    for time[0], waiting in ((0.0, True), (WAIT_NOTICE_SECONDS / 2, False), (WAIT_NOTICE_SECONDS, True)):
        watch.update(waiting=waiting)
    assert capsys.readouterr().err == ""


def test_free_resources_and_other_drivers_are_reported_without_their_commands() -> None:
    def make_driver(process: int, *, is_dead: bool = False) -> dict[str, object]:
        place = {"JobID": f"0{process}", "DriverIPAddress": "10.0.0.1", "DriverPid": process}
        return {**place, "IsDead": is_dead, "Entrypoint": "python -m jobs.sweep storage.secret=hush"}

    dashboard = make_driver(1) | {"Entrypoint": "ray::DashboardAgent"}
    drivers = [dashboard, make_driver(7), make_driver(8, is_dead=True), make_driver(9)]
    line = describe_resources({"CPU": 4.0, "memory": 1e9}, {"CPU": 0.5}, drivers)
    assert line == "0.5 of 4 CPUs are free, other running drivers: 10.0.0.1 (process 7); 10.0.0.1 (process 9)"
    line = describe_resources({"CPU": 4.0}, {"CPU": 0.5}, drivers, {"07": "small (by alice)", "05": "ended"})
    assert line == "0.5 of 4 CPUs are free, other running drivers: small (by alice); 10.0.0.1 (process 9)"
    alone = describe_resources({"CPU": 4.0, "GPU": 2.0}, {}, [])
    assert alone == "0 of 4 CPUs and 0 of 2 GPUs are free, no other driver is running"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_waiting_run_reserves_nothing_so_that_two_runs_cannot_block_each_other() -> None:
    """Two of four CPUs are in use. If both runs reserved their smaller pool, neither could reserve its larger pool."""
    import ray
    from ray.util import placement_group_table
    from ray.util.placement_group import placement_group, remove_placement_group

    pools = {"answers": PoolConfig(num_cpus=2.75), "scores": PoolConfig(num_cpus=1)}

    def wait_and_leave() -> str:
        with reserve_room(pools) as room:
            return str(placement_group_table(room.group)["state"])

    held = placement_group([{"CPU": 2}])
    assert held.wait(60)
    with ThreadPoolExecutor(2) as both:
        waiting = [both.submit(wait_and_leave) for _ in range(2)]
        assert wait_until(lambda: sum(group["state"] == "PENDING" for group in placement_group_table().values()) == 2)
        assert wait_until(lambda: ray.available_resources()["CPU"] == 2)
        remove_placement_group(held)
        assert [got.result() for got in waiting] == ["CREATED", "CREATED"]


@pytest.mark.usefixtures("ray_cluster")
def test_a_wave_that_is_too_large_for_the_machines_does_not_wait() -> None:
    with pytest.raises(NoRoomError, match="no room for its workers"), reserve_room({"answers": PoolConfig(num_cpus=5)}):
        raise AssertionError("a pool with five CPUs was placed on a machine with four")
