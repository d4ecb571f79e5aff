"""A run's note is shown wherever the run is shown, and does not affect any result."""

import json
import shlex
from pathlib import Path

from plumbline.pipelines.store.runs import list_runs
from tests.bench_of import UNJUDGED_OPTIONS, write_benchmark
from tests.commands import open_store_at, run, run_for_output, run_refused

NOTE = "seed 7, with the <b>new</b> VAE = better?"


def test_a_note_is_shown_with_its_run_and_does_not_cause_another_run(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench")
    store = open_store_at(tmp_path / "store")
    given = [f"store={store.place.url}", *UNJUDGED_OPTIONS, "metric=[clipscore]", "cluster=here", "shard_rows=4"]
    given += [f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"]
    assert run("sweep", *given, f"note={NOTE}", "storage.secret=hush hush").code == 0
    (made,) = list_runs(store)
    assert made.manifest is not None and made.manifest["note"] == NOTE
    said = shlex.split(made.manifest["command"])
    assert said == ["python", "-m", "jobs.sweep", *given, f"note={NOTE}", "storage.secret=***"]
    path = Path(store.place.url) / "runs" / made.run_id
    assert "seed 7, with the &lt;b&gt;new&lt;/b&gt; VAE" in (path / "report.html").read_text()

    for note in ("", "another, 12"):  # the command differs, too
        said = run_for_output("sweep", *given, f"note={note}")
        assert f"computed 0 cells, run {made.run_id}, exit code 0" in said
        assert ("keeps its own note" in said) == bool(note)
    assert [made.run_id] == [each.run_id for each in list_runs(store)]
    assert json.loads((path / "manifest.json").read_text())["note"] == NOTE

    assert f"note: {NOTE}" in run_for_output("status", f"store={store.place.url}")
    assert "note: expected one line" in run_refused("sweep", *given, "note=2\n3", code=64)
    assert "compare: expected a single run" in run_refused("report", f"store={store.place.url}", "compare=a,b", code=64)
