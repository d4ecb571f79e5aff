"""`ray job submit` runs the sweep as a job of a Ray head node.

The sweep's log is the job's log, and its exit code is passed on.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

from tests.bench_of import read_image_rows, write_benchmark, write_rows
from tests.environment import ROOT
from tests.ray_head import RAY_BINARY, RayHead, make_head_environment, run_head

WRITTEN_FOLDERS = {
    f"{folder}/"
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    for folder in re.findall(r"\boutput=([a-z]\w+)/\w", page.read_text())
}
"""Folders in the checkout that the examples write to."""


@pytest.mark.parametrize("folder", sorted(WRITTEN_FOLDERS | {"data/images/"}))
def test_files_that_the_examples_write_are_not_uploaded_with_a_job(folder: str) -> None:
    """Ray's own rules determine the files that are uploaded."""
    excludes = get_excludes_from_ignore_files(ROOT, include_gitignore=True)
    assert any(excluded(ROOT / folder / "00000.parquet") for excluded in excludes)
    assert not any(
        excluded(ROOT / kept) for excluded in excludes for kept in ("jobs/sweep.py", "plumbline/assets/shapes/images")
    )


def submit(head: RayHead, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RAY_BINARY, "job", "submit", f"--address={head.jobs}", "--working-dir=.", "--", *command],
        cwd=ROOT, env=make_head_environment(), capture_output=True, text=True, timeout=400,
    )  # fmt: skip


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """Yield the head of a cluster that the sweep does not start itself."""
    log = tmp_path_factory.mktemp("head") / "log"
    with run_head(log, "--num-cpus=4", "--labels=whose=theirs") as head:
        yield head


LABEL_OPTIONS = [f"+cluster.pools.{stage}.labels={{whose:theirs}}" for stage in ("image_statistics", "scores")]
"""Options that require a label which only the given cluster has."""


@pytest.mark.slow
def test_a_submitted_sweep_runs_on_the_given_cluster_and_leaves_it_running(head: RayHead, tmp_path: Path) -> None:
    """One of eight images is damaged, so the sweep writes a table but ends with exit code 1."""
    folder = write_benchmark(tmp_path / "bench")
    damaged = read_image_rows("atlas", 8)
    damaged[3]["image"] = b"no image"
    write_rows(folder / "images/atlas/00000.parquet", damaged)
    sweep = [
        "python",
        "-m",
        "jobs.sweep",
        "sweep=shapes",
        f"store={tmp_path}/store",
        "metric=[edge_density]",
        *LABEL_OPTIONS,
    ]
    sweep += [f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"]
    done = submit(head, *sweep)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"│ atlas +│ +0\.\d{3} │", done.stdout) and "\x1b[2K" not in done.stdout
    assert list((tmp_path / "store").glob("runs/*/scores.parquet"))
    with closing(HTTPConnection(head.jobs.removeprefix("http://"))) as caller:
        caller.request("GET", "/api/jobs/")
        (job,) = json.load(caller.getresponse())
    assert (job["status"], job["driver_exit_code"]) == ("FAILED", 1)
