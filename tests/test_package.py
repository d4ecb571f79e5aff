"""The built packages are complete and light, and work in projects whose folders have the same names as ours."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from plumbline.operators.base.errors import format_install_remedy
from tests.bench_of import read_image_rows, read_prompt_rows
from tests.environment import ROOT

MAX_DEPENDENCIES = 15
SCORE_SCRIPT = """
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


PIP_OPTIONS = ("--quiet", "--no-deps", "--no-build-isolation")
SDIST_SCRIPT = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
CORE_SCRIPT = """
import importlib.util, json, sys
import plumbline

loaded = {"numpy", "pyarrow", "torch", "transformers", "hydra"} & set(sys.modules)
scores = plumbline.score(["0000.png", sys.argv[1], "0001.png"], sys.argv[2:5], "clipscore", models="shapes")
found = [name for name in ("ray", "s3fs", "av", "vl_convert", "imagecodecs") if importlib.util.find_spec(name)]
errors = [None if error is None else error["message"] for error in scores["error"]]
print(json.dumps({"loaded": sorted(loaded), "found": found, "scores": scores["score"].tolist(), "errors": errors}))
"""


class BuiltWheels(NamedTuple):
    wheel: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltWheels:
    """Build the wheel, the sdist, and the wheel of the unpacked sdist; return both wheels."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    shutil.copytree(ROOT / "plumbline", source / "plumbline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", SDIST_SCRIPT, folder / "sdist"], check=True, cwd=source, capture_output=True)
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", *PIP_OPTIONS, "--wheel-dir"]
    subprocess.run([*pip, folder / "wheel", source], check=True, cwd=folder)
    subprocess.run([*pip, folder / "wheel_of_sdist", sdist], check=True, cwd=folder)
    (wheel,), (wheel_of_sdist,) = (folder.glob(f"{name}/*.whl") for name in ("wheel", "wheel_of_sdist"))
    return BuiltWheels(wheel, wheel_of_sdist)


@pytest.fixture(scope="module")
def site(built: BuiltWheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a folder, and return the folder."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "install", *PIP_OPTIONS, "--target", folder, built.wheel], check=True)
    return folder


@pytest.fixture(scope="module")
def light(built: BuiltWheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel built from the sdist and its required packages, but not those of extras."""
    venv = tmp_path_factory.mktemp("light") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/*/site-packages")
    required = [text for text in read_requirements(built.wheel) if "extra ==" not in text]
    for installed in find_distributions(required):
        link_files(installed, packages)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "--no-deps"]
    # the checkout's .egg-info, which pip finds by PYTHONPATH, does not count as installed
    subprocess.run([*pip, "--no-index", "--ignore-installed", built.wheel_of_sdist], check=True)
    return venv


def read_requirements(wheel: Path) -> list[str]:
    """Return the requirements of a wheel, including those of its extras."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(content.read(name)).get_all("Requires-Dist", [])


def find_distributions(required: Sequence[str]) -> list[Distribution]:
    """Return the installed distributions that the requirements need, directly or indirectly."""
    waiting, found = [Requirement(text) for text in required], dict[tuple[str, frozenset[str]], Distribution]()
    while waiting:
        wanted = waiting.pop()
        key = wanted.name, frozenset(wanted.extras)
        if key not in found:
            found[key] = distribution(wanted.name)
            for inner in map(Requirement, found[key].requires or ()):
                if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *key[1])):
                    waiting.append(inner)
    return list(found.values())


def link_files(installed: Distribution, packages: Path) -> None:
    """Link a distribution's packages and modules into a folder; several distributions may share a package."""
    for file in installed.files or ():
        top = Path(str(installed.locate_file(file.parts[0])))
        shared = top.is_dir() and top.suffix != ".dist-info" and not (top / "__init__.py").exists()
        name = Path(*file.parts[: 2 if shared else 1])
        link, target = packages / name, top.parent / name
        if file.parts[0] not in ("..", "__pycache__") and target.exists() and not link.exists():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(target)


def run_light(light: Path, folder: Path, program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [light / "bin" / program, *words]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)


def test_the_sdist_makes_the_same_wheel(built: BuiltWheels) -> None:
    sums = []
    for wheel in built:
        with zipfile.ZipFile(wheel) as content:
            sums.append(
                {file.filename: file.CRC for file in content.infolist() if not file.filename.endswith("/RECORD")}
            )
    assert sums[0] == sums[1]
    for name in ("conf/score.yaml", "assets/clip-shapes/model.safetensors", "plugins/edits/entry_points.txt"):
        assert f"plumbline/{name}" in sums[0]
    assert not [name for name in sums[0] if "/tests/" in name]


def test_the_core_has_few_dependencies(built: BuiltWheels) -> None:
    required = [text for text in read_requirements(built.wheel) if "extra ==" not in text]
    assert len(required) <= MAX_DEPENDENCIES
    assert not {Requirement(text).name for text in required} & {"ray", "s3fs", "av", "vl-convert-python"}


def test_the_core_scores_a_folder_and_names_the_extras_that_are_missing(light: Path, tmp_path: Path) -> None:
    """`plumbline score` and `plumbline.score` work without any extra.

    A command that needs a missing extra names it in one line.
    """
    for number, row in enumerate(read_image_rows("atlas", 2)):
        (tmp_path / f"{number:04}.png").write_bytes(row["image"])
    texts = [row["text"] for row in read_prompt_rows(2)]
    done = run_light(light, tmp_path, "python", "-c", CORE_SCRIPT, make_clip(tmp_path), texts[0], "a clip", texts[1])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["loaded"] == [] and told["found"] == []
    assert [score is not None and -1 <= score <= 1 for score in (told["scores"][0], told["scores"][2])] == [True, True]
    assert told["errors"] == [None, f"a video needs av; {format_install_remedy('video')}", None]

    outputs = tmp_path / "outputs" / "atlas"
    outputs.mkdir(parents=True)
    for number in range(2):
        (tmp_path / f"{number:04}.png").rename(outputs / f"{number:04}.png")
    (tmp_path / "outputs" / "prompts.txt").write_text("\n".join(texts) + "\n")
    score = ("score", "outputs", "models=shapes", "metric=[clipscore]")
    scored = run_light(light, tmp_path, "plumbline", *score)
    assert scored.returncode == 0 and "exit code 0" in scored.stdout, scored.stdout + scored.stderr
    (report,) = tmp_path.glob("store/runs/*/report.html")
    assert "A chart needs vl_convert" in report.read_text("utf-8")
    refusals = {
        "cluster=local": f"this cluster needs Ray; {format_install_remedy('ray')}, or set cluster.executor=here",
        "store=s3://bucket/store": f"store: s3:// needs aiobotocore; {format_install_remedy('s3')}",
    }
    for word, need in refusals.items():
        refused = run_light(light, tmp_path, "plumbline", *score, "retry_failed=true", "limit=1", word)
        assert (refused.returncode, refused.stderr.splitlines()[-1:]) == (1, [f"error: {need}"]), refused.stderr


def make_clip(folder: Path) -> str:
    """Write a file that starts like an MP4 and is therefore recognised as a video; return its path."""
    path = folder / "clip.mp4"
    path.write_bytes(b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isommp41" + bytes(1000))
    return str(path)


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
    """A script scores images with our package, and still imports the project's own `jobs`, `conf` and so on."""
    for room in ("jobs", "pipelines", "operators", "conf"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("OWNER = 'project'\n")
    for name, row in zip(("first", "second"), read_image_rows("atlas", 2), strict=True):
        (tmp_path / f"{name}.png").write_bytes(row["image"])
    texts = json.dumps([row["text"] for row in read_prompt_rows(2)])
    done = subprocess.run(
        [sys.executable, "-c", SCORE_SCRIPT, texts, str(site)], env=os.environ | {"PYTHONPATH": str(site)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tops"] == ["plumbline"] and found["theirs"] == ["project"] * 4
    assert all(-1 <= score <= 1 for score in found["scores"]) and found["failed"] == "missing_image"
