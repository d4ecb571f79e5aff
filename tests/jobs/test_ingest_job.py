"""The ingest command prints its output and one-line errors, and ends with the right exit codes."""

import json
from pathlib import Path

import pytest

from tests.bench_of import read_image_rows
from tests.commands import run, run_for_output


def write_input(folder: Path, *, absent: int = 0) -> Path:
    """Write a table of eight images and all but the last `absent` of their files; return the table's path."""
    lines = []
    for number, row in enumerate(read_image_rows("atlas", 8)):
        if number < 8 - absent:
            (folder / f"{number}.png").write_bytes(row["image"])
        lines.append(json.dumps({"file": f"{number}.png", "prompt": f"prompt {number}"}))
    (folder / "table.jsonl").write_text("\n".join(lines))
    return folder / "table.jsonl"


def test_the_command_reports_what_it_wrote_and_the_second_time_that_nothing_changed(tmp_path: Path) -> None:
    words = [f"table={write_input(tmp_path)}", "generator=sdxl", f"output={tmp_path}/out", "shard_rows=5"]
    said = run_for_output("ingest", *words)
    assert "sdxl/00000.parquet: 5 rows" in said and "8 found = 8 ingested + 0 rejected + 0 skipped" in said
    assert f"written to {tmp_path}/out/" in said
    assert run_for_output("ingest", *words).count("exists already") == 2


@pytest.mark.parametrize("absent, share, code", [(0, 0.0, 0), (2, 0.25, 2), (2, 0.2, 1)])
def test_the_exit_code_depends_on_the_rejected_fraction(absent: int, share: float, code: int, tmp_path: Path) -> None:
    table = write_input(tmp_path, absent=absent)
    options = [f"table={table}", "generator=sdxl", f"output={tmp_path}/out", f"max_failed={share}"]
    said = run_for_output("ingest", *options, code=code)
    assert ("rows rejected: missing_image" in said) == bool(absent)
    assert not absent or f"{table}, line 8: no file at {tmp_path}/7.png" in said


def test_no_secret_reaches_the_output_or_the_terminal(tmp_path: Path) -> None:
    options = [f"table={write_input(tmp_path)}", "generator=sdxl", f"output={tmp_path}/out"]
    options += ["storage.key=abc", "storage.secret=hush-hush"]
    for ended in (run("ingest", *options), run("ingest", *options, "--config")):
        assert ended.code == 0 and "hush-hush" not in ended.out + ended.err
    assert not any(b"hush-hush" in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
