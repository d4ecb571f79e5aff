"""ARCHITECTURE.md's lists of what to edit, followed to the letter in a copy of the tree: what they add, works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.bench_of import write_benchmark

ROOT = Path(__file__).parent.parent
SWEEP_HERE = """
import sys
from jobs.command import run_job
from jobs.sweep import COMMAND, main
from pipelines import sweep
from tests.here import compute_here

sweep._compute = compute_here
sys.exit(run_job(COMMAND, main))
"""
"""A sweep that computes its stages in its own process: that Ray runs what was added is no question here."""

RELEASE = '''"""Thumbs: whether one person likes an image.

Source: nobody's; a CSV with image, person and liked (yes or no).
"""

from pipelines.judging.releases.release import Release, column_ratings, released
from pipelines.judging.releases.tables import read_sheet
from pipelines.storage import Location


def read(location: Location) -> Release:
    """Yes as a rating of 1, no as 0."""
    sheet = read_sheet(location).require(("image", "person", "liked"), "is this Thumbs' file?")
    likes = [float(answer == "yes") for answer in sheet.ids("liked")]
    return released(ratings=column_ratings(sheet, sheet.ids("image"), sheet.texts("prompt"), likes))
'''
PROTOCOL = """# Thumbs: what one person likes.
defaults:
  - /any_protocol@_here_
  - _self_

name: thumbs
path: ???                    # a CSV
tasks: [ratings]
statistics: [auroc]
rating_range: [0, 1]
"""
BENCHMARK = """name: mine
prompts: {folder}/prompts.parquet
images: {folder}/images
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code and its configuration."""
    for name in ("jobs", "pipelines", "operators", "conf", "tests"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tree" / "assets").symlink_to(ROOT / "assets")
    return tmp_path / "tree"


def python(tree: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_release_is_a_file_a_name_and_a_protocol(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/judging/releases/thumbs.py").write_text(RELEASE)
    table = tree / "pipelines/judging/releases/readers.py"
    table.write_text(table.read_text().replace("RELEASES = (\n", 'RELEASES = (\n    "thumbs",\n'))
    (tree / "conf/protocol/thumbs.yaml").write_text(PROTOCOL)
    (tmp_path / "likes.csv").write_text("image,person,liked\na,p,yes\nb,p,no\nc,p,yes\nd,p,no\n")
    (tmp_path / "scores.csv").write_text("image_id,clip\na,0.9\nb,0.1\nc,0.4\nd,0.5\n")
    given = [f"protocol.path={tmp_path}/likes.csv", f"scores={tmp_path}/scores.csv", f"output={tmp_path}/judged"]
    assert "agreement with likert" in python(tree, "-m", "jobs.metaeval", "protocol=thumbs", *given)
    judged = pq.read_table(tmp_path / "judged/judgements.parquet").to_pylist()
    assert [(row["metric"], row["statistic"], row["value"], row["n"]) for row in judged] == [("clip", "auroc", 0.75, 4)]


def test_a_benchmark_is_a_file(tree: Path, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=4)
    (tree / "conf/benchmark/mine.yaml").write_text(BENCHMARK.format(folder=folder))
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store"]
    assert "clipscore: overall" in python(tree, "-c", SWEEP_HERE, *given)
    run = tmp_path / "store/runs" / (tmp_path / "store/runs/latest").read_text().strip()
    scores = pq.read_table(run / "scores.parquet").to_pylist()
    assert len(scores) == 8 and all(row["score"] is not None for row in scores)
