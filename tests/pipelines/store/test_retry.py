"""retry_failed recomputes failed rows that may succeed now, and rows that depend on them; all others are unchanged."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.leaderboards import show_outcome
from plumbline.jobs.display.plan_table import show_plan
from plumbline.operators.base.errors import RowError
from plumbline.operators.images import decoding as module
from plumbline.pipelines.store.cells import PlannedCell
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import plan_bench, read_image_rows, run_plan, write_benchmark, write_rows

METRIC_OPTION = "metric=[edge_density]"
SLOW_ERROR = RowError("image_too_slow", "decoding takes too long", retryable=True)


class RecordingDecoder:
    """A decoder that records every image, and returns a timeout error for the images in `slow`."""

    def __init__(self) -> None:
        self.decode = module.decode_bytes
        self.slow: set[bytes] = set()
        self.decoded: list[bytes] = []

    def __call__(self, encoded: bytes, *arguments: object) -> object:
        self.decoded.append(encoded)
        return SLOW_ERROR if encoded in self.slow else self.decode(encoded, *arguments)  # type: ignore[arg-type]


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingDecoder]:
    decoder = RecordingDecoder()
    monkeypatch.setattr(module, "decode_bytes", decoder)
    return decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "bench")


def make_plan(folder: Path, *overrides: str) -> PlannedSweep:
    return plan_bench(folder, folder.parent / "store", METRIC_OPTION, *overrides)


def run(folder: Path, *overrides: str) -> FinishedSweep:
    """Run a sweep and add its report, which completes the run."""
    done = run_plan(make_plan(folder, *overrides))
    (Path(done.folder) / "report.html").touch()
    return done


def list_error_kinds(done: FinishedSweep) -> list[str]:
    return sorted(done.results.read_errors().column("kind").to_pylist())


def list_cells(cells: frozenset[PlannedCell]) -> list[tuple[str, str]]:
    return sorted((cell.recipe.stage, cell.shard.group) for cell in cells)


def test_only_failed_rows_are_tried_again_and_new_images_wait(
    folder: Path, decoder: RecordingDecoder, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [row["image"] for row in read_image_rows("atlas", 8)[1:3]]
    decoder.slow = set(slow)
    first = run(folder)
    assert list_error_kinds(first) == ["image_too_slow"] * 2
    write_rows(folder / "images/cobalt/00000.parquet", read_image_rows("cobalt", 8))
    decoder.slow = set(slow[:1])
    decoder.decoded.clear()
    retry = make_plan(folder, "retry_failed=true")
    assert list_cells(retry.plan.missing) == [("image_statistics", "atlas"), ("scores", "atlas")]
    assert list_cells(retry.plan.untried) == [("image_statistics", "cobalt")] * 2 + [("scores", "cobalt")] * 2
    show_plan(make_console(), retry)
    done = run_plan(retry)
    show_outcome(make_console(), done)
    output = capsys.readouterr().out
    assert "retry_failed: 2 failed rows of 1 cells will be retried" in output
    assert "4 cells that were never computed are skipped" in output
    assert "retry_failed: 1 of 2 failed rows have a score now" in output
    assert sorted(decoder.decoded) == sorted(slow), "the other rows of the shard are kept"
    assert list_error_kinds(done) == ["image_too_slow", *["not_computed"] * 8]
    counts = read_manifest(retry.store, done.run_id)["counts"]
    assert (counts["rows_retried"], counts["rows_recovered"], counts["cells_cached"]) == (2, 1, 6)
    decoder.slow.clear()
    decoder.decoded.clear()
    whole = run(folder)
    assert (whole.exit_code, whole.retried, len(decoder.decoded)) == (0, None, 1 + 8)


def test_permanently_failed_rows_are_not_tried_again(folder: Path, decoder: RecordingDecoder) -> None:
    rows = read_image_rows("atlas", 8)
    rows[0]["image"] = b"no image at all"
    write_rows(folder / "images/atlas/00000.parquet", rows)
    decoder.slow = {rows[1]["image"]}
    assert list_error_kinds(run(folder)) == ["corrupt_image", "image_too_slow"]
    decoder.slow.clear()
    done = run(folder, "retry_failed=true")
    assert done.retried == (1, 1) and list_error_kinds(done) == ["corrupt_image"]


def test_without_failed_rows_the_existing_run_is_named(folder: Path, decoder: RecordingDecoder) -> None:
    first = run(folder)
    again = run(folder, "retry_failed=true")
    assert again.unchanged and again.run_id == first.run_id


def test_a_run_without_some_cells_does_not_replace_a_complete_run(folder: Path, decoder: RecordingDecoder) -> None:
    run(folder)
    write_rows(folder / "images/cobalt/00000.parquet", read_image_rows("cobalt", 8))
    assert list_error_kinds(run(folder, "retry_failed=true")) == ["not_computed"] * 8
    assert run(folder, "retry_failed=true").unchanged
    whole = run(folder)
    assert not whole.unchanged and whole.exit_code == 0


def test_an_image_that_was_missing_at_its_address_is_retried_when_it_exists(
    folder: Path, decoder: RecordingDecoder
) -> None:
    """The new image changes its cell's key, so the new cell has a different path from the draft with the failed row."""
    places = folder / "images/atlas"
    rows = read_image_rows("atlas", 4)
    for number, row in enumerate(rows[1:], 1):
        (places / f"{number}.png").write_bytes(row["image"])
    addresses = [{**row, "image": None, "uri": str(places / f"{n}.png")} for n, row in enumerate(rows)]
    schema = pa.schema([(name, pa.string()) for name in ("image_id", "prompt_id", "uri")])
    pq.write_table(pa.Table.from_pylist(addresses, schema=schema), places / "00000.parquet")
    overrides = ("benchmark.require_every_prompt=false",)
    assert list_error_kinds(run(folder, *overrides)) == ["missing_image"]
    (places / "0.png").write_bytes(rows[0]["image"])
    decoder.decoded.clear()
    done = run(folder, *overrides, "retry_failed=true")
    assert done.retried == (1, 1) and done.exit_code == 0 and decoder.decoded == [rows[0]["image"]]
