"""The installed package has a single top-level name, and works in a project with folders named like ours."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench_of import images, prompts
from tests.environment import ROOT

SCORED = """
import json, sys
import conf, jobs, operators, pipelines
import plumbline

scores = plumbline.score(["first.png", "second.png", "absent.png"], [*json.loads(sys.argv[1]), "a"], ["clipscore"])
ours = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(sys.argv[2])]
print(json.dumps({
    "scores": scores["score"].tolist()[:2], "failed": scores["error"][2]["kind"],
    "tops": sorted({name.partition(".")[0] for name in ours if name.partition(".")[0] != "project"}),
    "theirs": [jobs.OWNER, pipelines.OWNER, operators.OWNER, conf.OWNER],
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "plumbline", source / "plumbline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", folder / "site"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, source], check=True, cwd=folder)
    return folder / "site"


def test_a_wheel_contains_one_package_and_one_command(site: Path) -> None:
    brought = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert brought == {"plumbline", "bin"} and [path.name for path in (site / "bin").iterdir()] == ["plumbline"]
    said = subprocess.run(
        [sys.executable, site / "bin/plumbline", "--version"], env=os.environ | {"PYTHONPATH": str(site)}, cwd=site,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith("plumbline 0.")


@pytest.mark.slow
def test_it_works_in_a_project_with_folders_of_the_same_names(site: Path, tmp_path: Path) -> None:
    """Four lines of code score images, and no module of the wheel is importable under a second name."""
    for room in ("jobs", "pipelines", "operators", "conf"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("OWNER = 'project'\n")
    for name, row in zip(("first", "second"), images("atlas", 2), strict=True):
        (tmp_path / f"{name}.png").write_bytes(row["image"])
    texts = json.dumps([row["text"] for row in prompts(2)])
    done = subprocess.run(
        [sys.executable, "-c", SCORED, texts, str(site)], env=os.environ | {"PYTHONPATH": str(site)}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tops"] == ["plumbline"] and found["theirs"] == ["project"] * 4
    assert all(-1 <= score <= 1 for score in found["scores"]) and found["failed"] == "missing_image"
