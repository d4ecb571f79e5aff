"""The output of status fits the terminal; jobs that read a store report a missing store."""

from pathlib import Path

import pytest
from rich.text import Text

from plumbline.jobs.table import JOBS
from tests.commands import run, run_for_output, run_refused
from tests.files import write_files
from tests.operators.report.made import make_run

OPTIONS_BY_READING_JOB = {
    "status": [],
    "report": [],
    "trends": [],
    "rewards": ["format=pairs", "output=OUT"],
    "export": ["format=lance", "output=OUT"],
    "view": ["port=0"],
    "gc": [],
    "publish": ["sink=mlflow"],
}
"""Jobs that read an existing store, with their required options."""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_status_is_readable_on_a_terminal_of_any_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)  # make Rich assume a terminal
    run_id, metrics = "20261124-030405-000006", ("gecko", "clipscore", "vqascore", "tifa")
    made = make_run(tmp_path, metrics=metrics, run_id=run_id, benchmark="partiprompts", errors={"rate_limited": 12})
    lines = Text.from_ansi(run_for_output("status", f"store={made.store.place.url}")).plain.splitlines()
    assert all(len(line) <= width for line in lines)
    words = " ".join(" ".join(lines).split())
    for whole in (f"{run_id} (latest)", "partiprompts", "exit 0", *metrics, "12 rate_limited", "coverage"):
        assert whole in words


@pytest.mark.parametrize("job", [job for job in OPTIONS_BY_READING_JOB if job in JOBS])
def test_a_job_that_reads_a_store_reports_a_missing_store(job: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "sotre"
    given = [text.replace("OUT", str(tmp_path / "out")) for text in OPTIONS_BY_READING_JOB[job]]
    ended = run(job, f"store={nowhere}", *given)
    assert ended.code == 1 and not ended.out
    assert f"store {nowhere}: there is no store here; correct the address" in ended.line
    assert not list(tmp_path.iterdir())


def test_a_missing_bucket_is_reported_with_the_key_that_was_typed(bucket: str, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "mine", {"a.png": b"image", "a.txt": "a cat"})
    for words in (["status"], ["score", f"images={folder}", "metric=[edge_density]", "cluster=here"]):
        said = run_refused(*words, f"store={bucket}-of-nobody/x", code=1)
        assert said.startswith(f"error: store {bucket}-of-nobody/x: ") and "bucket" in said
    assert "there is no store here" in run_refused("status", f"store={bucket}/x", code=1)
