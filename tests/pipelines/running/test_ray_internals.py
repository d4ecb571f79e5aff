"""The private names of Ray that we use exist in the installed Ray, and a sweep works without them."""

import sys

import pytest
from ray.data import DataContext

from plumbline.pipelines.running import ray_internals
from plumbline.pipelines.running.ray_internals import CALLBACKS_FIELD, call_while_actors_wait, list_drivers

NEEDS_CALLBACKS = pytest.mark.skipif(
    not hasattr(DataContext.get_current(), CALLBACKS_FIELD),
    reason="this release of Ray calls nothing while actors wait",
)
PRIVATE_MODULES = ("ray._private.state", "ray.data._internal.execution.execution_callback")


@NEEDS_CALLBACKS
def test_ray_data_accepts_a_callback_that_polls_while_actors_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), CALLBACKS_FIELD, [])
    call_while_actors_wait(lambda: None, 1.0)
    (watch,) = getattr(DataContext.get_current(), CALLBACKS_FIELD)
    assert callable(watch().on_execution_step)


def test_the_drivers_of_the_cluster_are_listed(ray_cluster: None) -> None:
    assert any(not driver["IsDead"] and driver["DriverPid"] for driver in list_drivers())


@NEEDS_CALLBACKS
def test_if_rays_private_names_are_missing_a_warning_is_logged_and_nothing_is_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DataContext.get_current(), CALLBACKS_FIELD, [])
    for name in PRIVATE_MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    call_while_actors_wait(lambda: None, 1.0)
    assert getattr(DataContext.get_current(), CALLBACKS_FIELD) == [] and list_drivers() == []
    assert "waits for new ones" in caplog.text and caplog.records[0].name == ray_internals.__name__
