"""A package index with a few wheels, and a folder for environments, shared by the tests of a module."""

from pathlib import Path
from typing import Any

import pytest

from plugins.environments.tests.scorers import SCORER_CODE
from plugins.environments.tests.wheels import copy_installed_package, write_wheel


@pytest.fixture(autouse=True, scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Yield the folder of all wheels that uv may use: a scorer in two versions, its dependant `newer`, and Pillow."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in (1, 2):
        write_wheel(folder, "tinyscorer", f"{version}.0", SCORER_CODE.format(value=version))
    write_wheel(folder, "newer", "1.0", "", ["tinyscorer==2.0"])
    copy_installed_package(folder, "pillow")
    patch = pytest.MonkeyPatch()
    patch.setenv("UV_NO_INDEX", "1")
    patch.setenv("UV_FIND_LINKS", str(folder))
    patch.setenv("UV_CACHE_DIR", str(tmp_path_factory.mktemp("uv")))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")
