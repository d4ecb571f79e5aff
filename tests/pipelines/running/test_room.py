"""A run that waits for room on a cluster says so once, and who else is at work there."""

import pytest

from plumbline.pipelines.running.machines import PATIENCE, RoomWatch, describe_resources


def test_who_waits_for_a_worker_for_a_minute_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    watch = RoomWatch(lambda: "0 of 4 CPUs are free", clock=lambda: time[0])

    def look(at: float, *stages: str) -> str:
        time[0] = at
        watch.look(stages)
        return capsys.readouterr().err

    assert look(0, "answers", "scores") == ""
    assert look(PATIENCE - 1, "answers") == ""
    assert look(PATIENCE, "answers", "scores").startswith(
        "waiting for room on the cluster for a worker of answers: 0 of 4 CPUs are free; the run goes on"
    )
    assert look(9 * PATIENCE, "answers", "scores") == ""


def test_a_stage_that_gets_a_worker_in_between_has_not_waited(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    watch = RoomWatch(lambda: "", clock=lambda: time[0])
    for time[0], stages in ((0.0, ["scores"]), (PATIENCE / 2, []), (PATIENCE, ["scores"])):
        watch.look(stages)
    assert capsys.readouterr().err == ""


def test_what_is_free_and_who_else_is_at_work_is_told_without_their_commands() -> None:
    def driver(process: int, *, is_dead: bool = False) -> dict[str, object]:
        place = {"JobID": f"0{process}", "DriverIPAddress": "10.0.0.1", "DriverPid": process}
        return {**place, "IsDead": is_dead, "Entrypoint": "python -m jobs.sweep storage.secret=hush"}

    dashboard = driver(1) | {"Entrypoint": "ray::DashboardAgent"}
    drivers = [dashboard, driver(7), driver(8, is_dead=True), driver(9)]
    line = describe_resources({"CPU": 4.0, "memory": 1e9}, {"CPU": 0.5}, drivers)
    assert line == "0.5 of 4 CPUs are free, at work beside this run: 10.0.0.1 (process 7), 10.0.0.1 (process 9)"
    alone = describe_resources({"CPU": 4.0, "GPU": 2.0}, {}, [])
    assert alone == "0 of 4 CPUs and 0 of 2 GPUs are free, no other driver is at work"
