"""Any images whose rows hold their own prompts are scored by one command, with no benchmark."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.command import run_job
from jobs.score import COMMAND
from jobs.sweep import main
from tests.bench_of import CAPTIONED, SMALL, captioned, write_rows

ROOT = Path(__file__).parent.parent.parent


def score(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jobs.score", *arguments], capture_output=True, text=True, cwd=ROOT)


def test_one_command_scores_a_file_and_prints_coverage_and_means(tmp_path: Path) -> None:
    rows = captioned("atlas", 6)
    rows[5]["caption"] = None
    write_rows(tmp_path / "mine.parquet", rows)
    given = [f"images={tmp_path}/mine.parquet", "metrics=[vqascore,clipscore]", "models=shapes"]
    given += [f"store={tmp_path}/store", "max_failed=0.2", "benchmark.columns.extra=[seed]", *CAPTIONED, *SMALL]
    done = score(*given)
    assert done.returncode == 2, done.stdout + done.stderr
    folder = tmp_path / "store/runs" / (tmp_path / "store/runs/latest").read_text().strip()
    scores = pq.read_table(folder / "scores.parquet").to_pylist()
    assert [row["seed"] for row in scores] == [*range(6), *range(6)]
    assert [row["error"] and row["error"]["kind"] for row in scores] == [*[None] * 5, "empty_prompt"] * 2
    for metric in ("vqascore", "clipscore"):
        mean = sum(row["score"] for row in scores if row["metric"] == metric and row["score"] is not None) / 5
        board = done.stdout.split(f"{metric}: overall")[1]
        assert re.search(rf"mine\s+│\s+{mean:.3f}\s+│\s+[\d.]+ to [\d.]+\s+│\s+5\s+│\s+83.3%", board)
    assert {file.name for file in folder.iterdir()} >= {
        "scores.parquet", "summary.parquet", "errors.parquet", "manifest.json"
    }  # fmt: skip
    assert "0 cells to compute" in score(*given).stdout


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "config key 'benchmark.images' is required; set it"),
        (["images=/nowhere"], "benchmark.images /nowhere: not found"),
        (
            ["images={folder}"],
            "expected column(s) prompt, found picture, caption, seed; rename or add them, or correct",
        ),
        (["images={folder}", "metrics=[vqa]"], "metric=vqa: no such choice; did you mean vq2 or vqascore?"),
        (["images={folder}", "prompts=x"], "unknown config key 'prompts'"),
    ],
)
def test_what_cannot_be_scored_is_said_in_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "mine.parquet", captioned("atlas", 1))
    given = [argument.format(folder=tmp_path) for argument in arguments]
    code = run_job(COMMAND, main, ["models=shapes", "dry_run=true", f"store={tmp_path}/s", *given])
    assert code in (1, os.EX_USAGE)
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
