"""A note for people stands with its run everywhere, and decides no result."""

import json
from pathlib import Path

import pytest

from plumbline.jobs.command import run_job
from plumbline.jobs.report import COMMAND as REPORT
from plumbline.jobs.report import main as report
from plumbline.jobs.status import COMMAND as STATUS
from plumbline.jobs.status import main as status
from plumbline.jobs.sweep import COMMAND as SWEEP
from plumbline.jobs.sweep import main as sweep
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.runs import list_runs
from plumbline.pipelines.cells.store import Store
from tests.bench_of import write_benchmark

NOTE = "seed 7, with the <b>new</b> VAE = better?"


def test_a_note_is_shown_with_its_run_and_makes_no_run_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_benchmark(tmp_path / "bench")
    store = Store(StorageConfig().locate(str(tmp_path / "store")))
    given = [f"store={store.place.url}", "sweep=shapes", "metric=[clipscore]", "cluster=here", "shard_rows=4"]
    given += [f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"]
    assert run_job(SWEEP, sweep, [*given, f"note={NOTE}"]) == 0
    (run,) = list_runs(store)
    assert run.manifest is not None and run.manifest["note"] == NOTE
    path = Path(store.place.url) / "runs" / run.run_id
    assert "seed 7, with the &lt;b&gt;new&lt;/b&gt; VAE" in (path / "report.html").read_text()

    capsys.readouterr()
    for note in ("", "another, 12"):
        assert run_job(SWEEP, sweep, [*given, f"note={note}"]) == 0
        printed = capsys.readouterr().out
        assert f"computed 0 cells, run {run.run_id}, exit code 0" in printed
        assert ("keeps its own note" in printed) == bool(note)
    assert [run.run_id] == [each.run_id for each in list_runs(store)]
    assert json.loads((path / "manifest.json").read_text())["note"] == NOTE

    assert run_job(STATUS, status, [f"store={store.place.url}"]) == 0
    assert f"note: {NOTE}" in capsys.readouterr().out
    assert run_job(SWEEP, sweep, [*given, "note=2\n3"]) == 64
    assert run_job(REPORT, report, [f"store={store.place.url}", "compare=a,b"]) == 64
    refused = capsys.readouterr().err.splitlines()
    assert len(refused) == 2 and "note: expected one line" in refused[0] and "compare: expected one run" in refused[1]
