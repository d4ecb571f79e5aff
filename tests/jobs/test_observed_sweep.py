"""A running sweep logs a line for every cell, and exports counters at Ray's Prometheus endpoint."""

import json
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.bench_of import SMALL_OPTIONS, read_image_rows, write_benchmark, write_rows
from tests.commands import find_newest_run_folder, run_for_output

MAX_POLLS = 240
"""Maximum number of half-second polls until Ray's agent exports new values."""
METRIC_LINE_PATTERN = re.compile(r"ray_plumbline_(\w+)\{(.*)\} (\S+)")
METRIC_LABEL_PATTERN = re.compile(r'(\w+)="([^"]*)"')
pytestmark = pytest.mark.slow  # Ray's agent is slow
LABEL_NAMES = ("node", "over", "metric", "kind", "state")

Counts = Counter[tuple[str, ...]]


def read_ray_metrics() -> str:
    """Return Ray's metrics as the text that Prometheus would read from this machine."""
    import ray

    (machine,) = ray.nodes()
    with urllib.request.urlopen(f"http://127.0.0.1:{machine['MetricsExportPort']}/metrics", timeout=60) as reply:
        return str(reply.read().decode())


def read_counters() -> Counts:
    """Return the value of each counter, keyed by its name and our labels and summed over all processes."""
    counts: Counts = Counter()
    for name, text, value in METRIC_LINE_PATTERN.findall(read_ray_metrics()):
        labels = dict(METRIC_LABEL_PATTERN.findall(text))
        assert labels["stage"] == labels["node"].partition(":")[0]
        if name.endswith("_total"):
            counts[name.removesuffix("_total"), *(labels[label] for label in LABEL_NAMES if label in labels)] += float(
                value
            )
    return counts


class ObservedSweep(NamedTuple):
    manifest: Mapping[str, Any]
    cells: list[dict[str, Any]]
    lines: list[dict[str, str]]
    before: Counts
    printed: str
    text: str = ""

    def wait(self) -> None:
        """Wait until the agent exports the run's counters, or until a timeout."""
        counts = self.manifest["counts"]
        waiting = threading.Event()
        for _ in range(MAX_POLLS):
            added = read_counters() - self.before
            if sum(count for key, count in added.items() if key[0] == "cells") == counts["cells"]:
                return
            waiting.wait(0.5)

    def wait_for_counts(self, expected: Mapping[tuple[str, ...], float], *names: str) -> None:
        """Wait until the run has increased these counters as expected; fail if that takes too long."""
        waiting = threading.Event()
        for _ in range(MAX_POLLS):
            added = {key: value for key, value in (read_counters() - self.before).items() if key[0] in names}
            if added == expected:
                return
            waiting.wait(0.5)
        assert added == expected


def run_observed_sweep(folder: Path, *overrides: str) -> ObservedSweep:
    before = read_counters()
    log = folder / f"{len(overrides)}.jsonl"
    arguments = ["sweep=shapes", "metric=[clipscore]", "benchmark.name=small", "max_failed=1",
                 f"benchmark.prompts={folder}/bench/prompts.parquet", f"benchmark.images={folder}/bench/images",
                 f"store={folder}/store", "log.format=json", f"log.file={log}", *SMALL_OPTIONS,
                 "cluster=local", *overrides]  # fmt: skip
    said = run_for_output("sweep", *arguments, code=2)
    folder_of_run = find_newest_run_folder(folder / "store")
    observed = ObservedSweep(
        json.loads((folder_of_run / "manifest.json").read_text()),
        pq.read_table(folder_of_run / "cells.parquet").to_pylist(),
        [json.loads(line) for line in log.read_text().splitlines()],
        before,
        said,
    )
    observed.wait()
    return observed._replace(text=read_ray_metrics())


def corrupt_images(folder: Path, *places: int) -> None:
    """Replace atlas's images at these positions with bytes that cannot be decoded."""
    rows = read_image_rows("atlas", 4)
    for place in places:
        rows[place]["image"] = b"no image"
    write_rows(folder / "bench" / "images" / "atlas" / "00000.parquet", rows)


@pytest.fixture(scope="module")
def sweeps(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[ObservedSweep, ObservedSweep]:
    """Run a sweep with one broken image, and then a sweep with two; the second reuses all other results."""
    folder = tmp_path_factory.mktemp("observed")
    write_benchmark(folder / "bench", ["atlas", "flint"], count=4)
    corrupt_images(folder, 0)
    first = run_observed_sweep(folder)
    corrupt_images(folder, 0, 1)
    return first, run_observed_sweep(folder, "dry_run=false")


def test_the_counters_agree_with_the_manifest(sweeps: tuple[ObservedSweep, ObservedSweep]) -> None:
    first, _ = sweeps
    counts, errors = first.manifest["counts"], first.manifest["errors"]
    assert (counts["cells_computed"], errors) == (4, {"corrupt_image": 1})
    done = Counter(cell["node"] for cell in first.cells)
    rows = Counter[tuple[str, ...]]()
    for cell in first.cells:
        rows["rows", cell["node"], "images"] += cell["rows"]
    cells = {("cells", node, "committed"): count for node, count in done.items()}
    failed = {("failures", node, "clipscore", kind): count for node in done for kind, count in errors.items()}
    assert sum(cells.values()) == counts["cells_computed"]
    first_only = {**rows, **cells, **failed}
    added = sweeps[1].before - first.before
    assert {key: value for key, value in added.items() if key[0] in ("rows", "cells", "failures")} == first_only
    assert added["model_seconds", "similarities:clip"] > 0
    assert ("model_seconds", "scores") not in added


def test_reused_cells_are_counted_as_reused(sweeps: tuple[ObservedSweep, ObservedSweep]) -> None:
    _, second = sweeps
    counts = second.manifest["counts"]
    assert (counts["cells_cached"], counts["cells_computed"], counts["rows_kept"]) == (2, 2, 2)
    nodes = ("similarities:clip", "scores")
    cells = {("cells", node, state): 1 for node in nodes for state in ("cached", "committed")}
    second.wait_for_counts({**cells, ("kept_rows", nodes[0], "clipscore"): 2}, "cells", "kept_rows")


def test_every_computed_cell_has_a_log_line(sweeps: tuple[ObservedSweep, ObservedSweep]) -> None:
    for observed in sweeps:
        run = observed.manifest["run_id"]
        assert {line["run"] for line in observed.lines} == {run}
        told = {(line["node"], line["cell"]): line for line in observed.lines if "cell" in line}
        computed = {cell["path"]: cell for cell in observed.cells if cell["state"] == "committed"}
        assert {(cell["node"], path[-16:-8]) for path, cell in computed.items()} == set(told)
        assert {line["generator"] for line in told.values()} <= {"atlas", "flint"}
    spoilt = [line["message"] for line in sweeps[1].lines if line.get("node") == "similarities:clip" and "cell" in line]
    assert spoilt == ["committed: 4 rows, 2 corrupt_image, 2 kept"]


def test_progress_counts_model_calls(sweeps: tuple[ObservedSweep, ObservedSweep]) -> None:
    """The seven valid images are counted, and so are their prompts."""
    (line,) = (line for line in sweeps[0].printed.splitlines() if line.startswith("similarities:clip: 2/2 cells"))
    assert ", 14 of about 16 steps, 1 failed rows" in line


def test_rays_dashboard_shows_our_stage_names(sweeps: tuple[ObservedSweep, ObservedSweep]) -> None:
    operators = re.findall(r'operator="(MapBatches\([^)]*\))', sweeps[0].text)
    assert {"MapBatches(similarities:clip)", "MapBatches(scores)"} <= set(operators)
    assert "MapBatches(StageActor)" not in operators
