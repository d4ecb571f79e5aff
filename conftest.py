"""Fixtures for all tests, made once per test process: a clean environment, the S3 server, and Ray."""

import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from plumbline.jobs.table import PLUGIN_JOBS
from tests.environment import ROOT, set_environment
from tests.releases import CHAT_MODEL_TESTS, CHAT_MODELS_RELEASE, OLD_LIBRARY_MESSAGE_PATTERN, is_older
from tests.s3 import S3Server, run_server

if TYPE_CHECKING:
    from plumbline.pipelines.store.store import Store

set_environment()
pytest_plugins = ["tests.browser.fixtures", "tests.operators.fixtures", "tests.refusals"]
TRAINING_TESTS = ("nli", "questions", "training", "world", "writer")
"""Names of the tests in tests/assets whose models are trained by the plugin `training`."""
WHOLE_PROJECT_TESTS = ("commands_run", "models_page", "pages", "papers", "plugins", "python_page")
"""Names of the tests in tests/ that are about the core and all plugins together."""
collect_ignore: list[str] = []
if any(not (ROOT / "plugins" / plugin).is_dir() for plugin in PLUGIN_JOBS.values()):
    collect_ignore = [
        *(f"tests/assets/test_{name}.py" for name in TRAINING_TESTS),
        *(f"tests/test_{name}.py" for name in WHOLE_PROJECT_TESTS),
    ]  # fmt: skip
if is_older(CHAT_MODELS_RELEASE):
    collect_ignore = [*collect_ignore, *CHAT_MODEL_TESTS]
# for machines that others use too; nothing is written next to the code
settings.register_profile("untimed", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)  # some commands run without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one, because a worker that waits for Ray, a server or a lease frees its core."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test as skipped if its model family needs a newer release of transformers than the installed one."""
    report = yield
    if (
        is_older(CHAT_MODELS_RELEASE)
        and call.excinfo is not None
        and OLD_LIBRARY_MESSAGE_PATTERN.search(str(call.excinfo.value))
    ):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(call.excinfo.value))
    return report


LONG_MODULES = ("tests/test_commands", "tests/jobs/test_sweep_job", "tests/test_plugins", "tests/faults", "tests/jobs",
        "tests/histories", "tests/pipelines", "tests/test_package", "plugins")  # fmt: skip
"""Path prefixes of the modules with the longest tests, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest modules first, and the modules that start Ray in a worker's process last.

    Starting with the longest modules lets the workers finish at about the same time. Ray comes last because a sweep
    with `cluster=auto` uses any Ray cluster that is already running, which would make it many times slower.
    """
    on_ray = {item.path for item in items if "ray_cluster" in getattr(item, "fixturenames", ())}

    def find_sort_key(item: pytest.Item) -> tuple[bool, int]:
        rank = next((n for n, start in enumerate(LONG_MODULES) if item.nodeid.startswith(start)), len(LONG_MODULES))
        return item.path in on_ray, rank

    items.sort(key=find_sort_key)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create a bucket for the test and yield its address; the AWS variables give access to it during the test."""
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
    """Return the address of an empty folder, or of an empty prefix in a bucket; the test runs once with each."""
    return str(tmp_path / "place") if request.param == "folder" else request.getfixturevalue("bucket") + "/some/prefix"


@pytest.fixture
def store(place: str) -> "Store":
    """Return a store in a folder, or a store on S3; the test runs once with each."""
    from tests.commands import open_store_at

    return open_store_at(place)


@pytest.fixture(scope="session")
def ray_cluster(s3_server: S3Server) -> Iterator[None]:
    """Start one Ray cluster for all tests that run stages.

    Its workers have access to the S3 server, and tests can trigger faults in them (tests/faults/hook.py).
    """
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
