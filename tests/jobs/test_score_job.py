"""Any images whose rows hold their own prompts are scored by one command, with no benchmark."""

import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.jobs.command import run_job
from plumbline.jobs.score import COMMAND, main
from tests.bench_of import CAPTIONED, SMALL, captioned, images, prompts, write_rows


def test_one_command_scores_a_file_and_prints_coverage_and_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = captioned("atlas", 6)
    rows[5]["caption"] = None
    write_rows(tmp_path / "mine.parquet", rows)
    given = [f"images={tmp_path}/mine.parquet", "metrics=[vqascore,clipscore]", "models=shapes", "cluster=here"]
    given += [f"store={tmp_path}/store", "max_failed=0.2", "verbose=true", "benchmark.columns.extra=[seed]"]
    given += [*CAPTIONED, *SMALL]
    assert run_job(COMMAND, main, given) == 2
    printed = capsys.readouterr().out
    folder = tmp_path / "store/runs" / (tmp_path / "store/runs/latest").read_text().strip()
    scores = pq.read_table(folder / "scores.parquet").to_pylist()
    assert [row["seed"] for row in scores] == [*range(6), *range(6)]
    assert [row["error"] and row["error"]["kind"] for row in scores] == [*[None] * 5, "empty_prompt"] * 2
    for metric in ("vqascore", "clipscore"):
        mean = sum(row["score"] for row in scores if row["metric"] == metric and row["score"] is not None) / 5
        board = printed.split(f"{metric}: overall")[1]
        assert re.search(rf"mine\s+│\s+{mean:.3f}\s+│\s+[\d.]+ to [\d.]+\s+│\s+5\s+│\s+83.3%", board)
    assert {file.name for file in folder.iterdir()} >= {
        "scores.parquet", "summary.parquet", "errors.parquet", "manifest.json"
    }  # fmt: skip
    assert run_job(COMMAND, main, given) == 2 and "0 cells to compute" in capsys.readouterr().out


def write_folder(folder: Path) -> Path:
    """Images of two generators with a list of their prompts, as a script leaves them."""
    texts = {row["prompt_id"]: row["text"] for row in prompts(4)}
    for generator in ("atlas", "flint"):
        (folder / generator).mkdir(parents=True)
        for number, row in enumerate(images(generator, 4)):
            (folder / generator / f"{number:05d}.png").write_bytes(row["image"])
    (folder / "prompts.txt").write_text("\n".join(texts[row["prompt_id"]] for row in images("atlas", 4)))
    return folder


def test_a_folder_of_image_files_is_scored_where_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "mine")
    given = [f"images={folder}", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store", "cluster=here"]
    assert run_job(COMMAND, main, given) == 0
    printed = capsys.readouterr().out
    assert "8 images taken in" in printed and "4 prompts x 2 generators = 8 images" in printed
    assert run_job(COMMAND, main, given) == 0
    assert "0 cells to compute: everything is in the store" in capsys.readouterr().out


def test_a_table_that_names_image_files_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "mine")
    prompts = (folder / "prompts.txt").read_text().splitlines()
    lines = [f"atlas/{number:05d}.png,{prompt}" for number, prompt in enumerate(prompts)]
    (folder / "best.csv").write_text("\n".join(["file,prompt", *reversed(lines)]))
    given = [f"{folder}/best.csv", "models=shapes", "metric=clipscore", f"store={tmp_path}/store", "--dry-run"]
    assert run_job(COMMAND, main, given) == 0
    assert "4 prompts x 1 generators = 4 images, metrics clipscore" in capsys.readouterr().out


def test_what_is_taken_in_and_what_is_not_is_told_before_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "flint/cover.png").write_bytes(b"no number")
    given = [f"images={folder}", "models=shapes", f"store={tmp_path}/store", "dry_run=true", "max_failed=0.2"]
    assert run_job(COMMAND, main, given) == 2
    printed = capsys.readouterr().out
    assert "8 images taken in" in printed and "4 prompts x 2 generators = 8 images" in printed
    assert "1 rows rejected: empty_prompt" in printed and "flint/cover.png: no number in its name" in printed


def test_where_every_image_is_rejected_the_reasons_are_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "images.csv").write_text("file,prompt\ngone.png,a circle\n")
    given = [f"images={folder}", "models=shapes", f"store={tmp_path}/store", "dry_run=true"]
    assert run_job(COMMAND, main, given) == 1
    printed = capsys.readouterr()
    assert "1 rows rejected: missing_image" in printed.out and "8 rows rejected: empty_prompt" in printed.out
    assert printed.err == f"error: images {folder}: every image was rejected; the reasons are above\n"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "config key 'benchmark.images' is required; set it"),
        (["images=/nowhere"], "benchmark.images /nowhere: not found"),
        (
            ["images={folder}"],
            "expected column(s) image or uri, found picture, caption, seed; rename or add them, or correct",
        ),
        (["images={folder}", "metrics=[vqa]"], "metric=vqa: no such choice; did you mean vq2 or vqascore?"),
        (["images={folder}", "prompts=/nowhere"], "/nowhere: not found"),
        (["outputs"], "/outputs: not found; check the path"),
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
