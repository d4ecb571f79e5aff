"""The cost per row of a run's tables and report is flat, and a night with one new generator is cheap."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripted_sweep import ROW_GROUP_SIZE, write_images, write_prompts
from tests.benchmarks.size import choose_size, expect, read_output

GENERATORS = ("atlas", "borealis", "cobalt", "drift", "ember")
PROMPT_COUNTS = choose_size((2_000, 20_000, 200_000), (250, 500))
"""Numbers of prompts; with five generators they give 10,000, 100,000 and 1,000,000 rows."""
MAX_GROWTH = 1.25
"""Maximum growth of the time per row when the number of rows grows a hundredfold."""
MAX_MEGABYTES = 1_000
"""Maximum memory of the driver, in MB, at a million rows."""
MAX_NIGHT_RATIO = 0.5
"""Maximum cost of a night's tables if a sixth generator is added, relative to the night with the first five."""


MAX_ROW_BYTES = 256
"""Maximum memory of a report per row of one metric, in bytes."""
N_METRICS = choose_size(10, 2)
MAX_METRIC_GROWTH = 4.0
"""Maximum growth of a report's memory, beyond that of a small report, when the number of metrics grows tenfold.

The memory would grow tenfold if a report kept the scores of all metrics in memory at once. The measured growth is 3.03,
because each metric adds figures.
"""


def run_scripted_sweep(folder: Path, store: str = "store", metrics: int = 1) -> dict[str, Any]:
    return dict(read_output("scripted_sweep", str(folder), str(folder / store), str(metrics)))


def describe(rows: int, measured: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured["seconds"].items())
    per_row = measured["seconds"]["results"] / rows * 1e6
    return f"{rows:,} rows: {times} of CPU; results {per_row:.1f} us per row; driver at most {measured['peak']:.0f} MB"


def test_results_take_the_same_time_per_row_for_any_number_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    per_row = []
    for count in PROMPT_COUNTS:
        folder, rows = tmp_path / str(count), count * len(GENERATORS)
        write_prompts(folder, count)
        for generator in GENERATORS:
            write_images(folder, generator, count)
        measured = run_scripted_sweep(folder)
        per_row.append(measured["seconds"]["results"] / rows)
        with capsys.disabled():
            print("\n" + describe(rows, measured))
        assert measured["exit_code"] == 0 and measured["cells_read"] == rows / ROW_GROUP_SIZE
    expect(measured["peak"] < MAX_MEGABYTES)
    expect(per_row[-1] < MAX_GROWTH * per_row[0])
    write_images(folder, "flint", count)
    night = run_scripted_sweep(folder)
    with capsys.disabled():
        print("a sixth generator: " + describe(count, night))
    assert night["cells_read"] == count / ROW_GROUP_SIZE, "only the new generator's cells"
    expect(night["seconds"]["results"] < MAX_NIGHT_RATIO * measured["seconds"]["results"])


def test_a_report_keeps_the_scores_of_one_metric_in_memory_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = PROMPT_COUNTS[:2]
    for count in (few, many):
        write_prompts(tmp_path / str(count), count)
        for generator in GENERATORS:
            write_images(tmp_path / str(count), generator, count)
    small, large = tmp_path / str(few), tmp_path / str(many)
    run_scripted_sweep(small)
    grown = []
    for metrics in (1, N_METRICS):
        run_scripted_sweep(large, f"store-{metrics}", metrics)
        base, peak = read_output("reports", f"{small}/store", f"{large}/store-{metrics}")
        grown.append(peak - base)
        with capsys.disabled():
            rows = many * len(GENERATORS) * metrics
            print(f"\na report of {rows:,} rows of {metrics} metrics: {peak:.0f} MB (a small report: {base:.0f} MB)")
    expect(grown[1] < MAX_METRIC_GROWTH * grown[0])


def test_a_report_takes_few_bytes_of_memory_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    measured = read_output("one_metric", str(choose_size(1 << 18, 1 << 11)))
    with capsys.disabled():
        print(f"\na report of one metric: {measured['bytes_a_row']:.0f} bytes per row, with {measured['rows']:,} rows")
    expect(measured["bytes_a_row"] < MAX_ROW_BYTES)
