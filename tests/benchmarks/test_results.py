"""What a run's tables and report cost while rows grow a hundredfold, and what a night with one new generator costs."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripted_sweep import ROW_GROUP, write_images, write_prompts
from tests.benchmarks.size import said_by, sized, wanted

GENERATORS = ("atlas", "borealis", "cobalt", "drift", "ember")
PROMPTS = sized((2_000, 20_000, 200_000), (250, 500))
"""Of each benchmark: with five generators 10,000, 100,000 and 1,000,000 rows."""
FLAT = 1.25
"""The most that the time of a row may grow by while rows grow a hundredfold."""
MEGABYTES = 1_000
"""Below it the driver's memory is to stay at a million rows."""
NIGHT = 0.5
"""The most that the results of a night with a sixth generator may take, of what those of the first five took."""


BYTES = 256
"""Below it a row of one metric is to stay in a report's memory, at its most."""
METRICS = sized(10, 2)
MORE = 4.0
"""The most that a report's memory, beyond that of a small one, may grow by while metrics, and so rows, grow tenfold: it
would grow tenfold if a report held the scores of all metrics at once. Measured: 3.03, for each metric has figures."""


def swept(folder: Path, store: str = "store", metrics: int = 1) -> dict[str, Any]:
    """What a scripted sweep in a process of its own says of itself."""
    return dict(said_by("scripted_sweep", str(folder), str(folder / store), str(metrics)))


def said(rows: int, measured: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured["seconds"].items())
    per_row = measured["seconds"]["results"] / rows * 1e6
    return f"{rows:,} rows: {times} of CPU; results {per_row:.1f} us a row; driver at most {measured['peak']:.0f} MB"


def test_results_take_the_same_time_for_a_row_of_ten_thousand_and_of_a_million(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    per_row = []
    for count in PROMPTS:
        folder, rows = tmp_path / str(count), count * len(GENERATORS)
        write_prompts(folder, count)
        for generator in GENERATORS:
            write_images(folder, generator, count)
        measured = swept(folder)
        per_row.append(measured["seconds"]["results"] / rows)
        with capsys.disabled():
            print("\n" + said(rows, measured))
        assert measured["exit_code"] == 0 and measured["cells_read"] == rows / ROW_GROUP
    wanted(measured["peak"] < MEGABYTES)
    wanted(per_row[-1] < FLAT * per_row[0])
    write_images(folder, "flint", count)
    night = swept(folder)
    with capsys.disabled():
        print("a sixth generator: " + said(count, night))
    assert night["cells_read"] == count / ROW_GROUP, "the cells of the new generator alone"
    wanted(night["seconds"]["results"] < NIGHT * measured["seconds"]["results"])


def test_a_report_holds_the_scores_of_one_metric_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, many = PROMPTS[:2]
    for count in (few, many):
        write_prompts(tmp_path / str(count), count)
        for generator in GENERATORS:
            write_images(tmp_path / str(count), generator, count)
    small, large = tmp_path / str(few), tmp_path / str(many)
    swept(small)
    grown = []
    for metrics in (1, METRICS):
        swept(large, f"store-{metrics}", metrics)
        base, peak = said_by("reports", f"{small}/store", f"{large}/store-{metrics}")
        grown.append(peak - base)
        with capsys.disabled():
            rows = many * len(GENERATORS) * metrics
            print(
                f"\na report of {rows:,} rows of {metrics} metrics: {peak:.0f} MB, of which {base:.0f} of a small one"
            )
    wanted(grown[1] < MORE * grown[0])


def test_a_row_of_one_metric_takes_few_bytes_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    measured = said_by("one_metric", str(sized(1 << 18, 1 << 11)))
    with capsys.disabled():
        print(f"\na report of one metric: {measured['bytes_a_row']:.0f} bytes a row, of {measured['rows']:,} rows")
    wanted(measured["bytes_a_row"] < BYTES)
