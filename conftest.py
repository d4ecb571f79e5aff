"""Fixtures that several rooms share, once for each test worker: a clean environment, the S3 server, Ray."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.environment import ROOT, set_environment
from tests.s3 import S3Server, run_server

if TYPE_CHECKING:
    from plumbline.pipelines.cells.store import Store

set_environment()
pytest_plugins = ["tests.browser.fixtures", "tests.operators.fixtures", "tests.refusals"]
if not (ROOT / "plugins" / "training").is_dir():  # it trains the models of the embedded world
    collect_ignore = [
        *(f"tests/assets/test_{name}.py" for name in ("nli", "questions", "training", "world", "writer")),
        "tests/test_commands_run.py",
    ]
# for machines that others use too; nothing is written beside the code
settings.register_profile("untimed", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)  # some commands run without xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a worker that waits for a Ray, a server or a lease leaves its core to another."""
    return len(os.sched_getaffinity(0)) + 1


LONG = ("tests/test_commands", "tests/jobs/test_sweep_job", "tests/test_plugins", "tests/faults", "tests/jobs",
        "tests/histories", "tests/pipelines", "tests/test_package", "plugins")  # fmt: skip
"""Where long modules are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, for workers to end together; but last the modules that start Ray in a worker's process.

    A sweep with `cluster=auto`, which computes where it is, would find that Ray and run there for many times as long.
    """
    on_ray = {item.path for item in items if "ray_cluster" in getattr(item, "fixturenames", ())}

    def order(item: pytest.Item) -> tuple[bool, int]:
        rank = next((n for n, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG))
        return item.path in on_ray, rank

    items.sort(key=order)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of the test's own, reachable by the standard AWS variables, which are forgotten after it."""
    from plumbline.pipelines.base.filesystems import open_filesystem

    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    readable = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-")
    name = f"b-{readable}-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]}"
    s3_server.filesystem().mkdir(name)
    yield f"s3://{name}"
    open_filesystem.cache_clear()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a folder, and of a prefix of a bucket."""
    return str(tmp_path / "place") if request.param == "folder" else request.getfixturevalue("bucket") + "/some/prefix"


@pytest.fixture
def store(place: str) -> "Store":
    """A store in a folder, and one on S3."""
    from tests.commands import store_at

    return store_at(place)


@pytest.fixture(scope="session")
def ray_cluster(s3_server: S3Server) -> Iterator[None]:
    """One Ray for all tests that run stages, whose workers can reach the S3 server and can be told to die."""
    import ray

    from tests.faults.hook import install

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        runtime_env={"env_vars": s3_server.environment(), "worker_process_setup_hook": install},
    )
    yield
    ray.shutdown()
