"""The command as a person runs it: exit codes, what is printed, and errors in one line."""

import json
import os
from pathlib import Path

import pytest

from plumbline.jobs.command import run_job
from plumbline.jobs.ingest import COMMAND, main
from tests.bench_of import images


def write_input(folder: Path, *, absent: int = 0) -> Path:
    """A table of eight images and their files, of which the last few are absent."""
    lines = []
    for number, row in enumerate(images("atlas", 8)):
        if number < 8 - absent:
            (folder / f"{number}.png").write_bytes(row["image"])
        lines.append(json.dumps({"file": f"{number}.png", "prompt": f"prompt {number}"}))
    (folder / "table.jsonl").write_text("\n".join(lines))
    return folder / "table.jsonl"


def test_the_command_tells_what_it_wrote_and_again_that_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"table={write_input(tmp_path)}", "generator=sdxl", f"output={tmp_path}/out", "shard_rows=5"]
    assert run_job(COMMAND, main, words) == 0
    printed = capsys.readouterr().out
    assert "sdxl/00000.parquet: 5 rows" in printed and "8 rows in, 8 written, 0 rejected, 8 prompts" in printed
    assert f"written to {tmp_path}/out/" in printed
    assert run_job(COMMAND, main, words) == 0 and capsys.readouterr().out.count("stands already") == 2


@pytest.mark.parametrize("absent, share, code", [(0, 0.0, 0), (2, 0.25, 2), (2, 0.2, 1)])
def test_the_exit_code_tells_how_much_was_rejected(
    absent: int, share: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_input(tmp_path, absent=absent)
    options = [f"table={table}", "generator=sdxl", f"output={tmp_path}/out", f"max_failed={share}"]
    assert run_job(COMMAND, main, options) == code
    printed = capsys.readouterr().out
    assert ("rows rejected: missing_image" in printed) == bool(absent)
    assert not absent or f"{table}, line 8: no file at {tmp_path}/7.png" in printed


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["table=/nowhere/t.csv"], "table /nowhere/t.csv: not found"),
        (["table=README.md"], "expected a file that ends in .csv"),
        (["tars=/nowhere"], "tars /nowhere: expected files that end in .tar"),
        ([], "expected one input: table=FILE"),
        (["table=a", "tars=b"], "expected one input: table=FILE"),
        (["table=a", "shard_rows=0"], "shard_rows: expected at least 1, got 0"),
        (["table=a", "link_roots=['s3://a']"], "link_roots: expected local folders, got 's3://a'"),
        (["table=s3://bucket/t.csv", "storage.region=none"], "s3://: no credentials found; set AWS_ACCESS_KEY_ID"),
        (["tabel=x"], "unknown config key 'tabel'; did you mean table"),
        (["table=x", "on_change=maybe"], "config key 'on_change': expected 'fail' or 'replace', got 'maybe'"),
        (["table=x", "max_failed=3"], "max_failed: expected a share between 0 and 1, got 3"),
        (["table=x", "generator=a/b"], "generator: 'a/b' cannot be a folder's name"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line_with_the_remedy(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_job(COMMAND, main, [f"output={tmp_path}/out", *arguments])
    lines = capsys.readouterr().err.splitlines()
    assert code in (1, os.EX_USAGE) and len(lines) == 1
    assert lines[0].startswith("error: ") and complaint in lines[0]


def test_no_secret_reaches_the_output_or_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_input(tmp_path)
    options = [
        f"table={table}",
        "generator=sdxl",
        f"output={tmp_path}/out",
        "storage.key=abc",
        "storage.secret=hush-hush",
    ]
    assert run_job(COMMAND, main, options) == 0
    assert run_job(COMMAND, main, [*options, "--config"]) == 0
    shown = capsys.readouterr()
    assert "hush-hush" not in shown.out + shown.err
    assert not any(b"hush-hush" in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
