"""Showing one page out of a million scores is cheap compared with reading and sorting all scores with pandas."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripted_sweep import write_images, write_prompts
from tests.benchmarks.size import choose_size, expect, read_output
from tests.benchmarks.test_results import GENERATORS, run_scripted_sweep

N_PROMPTS = choose_size(100_000, 500)
"""Number of prompts; with five generators and two metrics they give a million rows."""
MAX_OPENING_RATIO = 4.0
"""Maximum cost of opening a run, relative to reading its scores and prompt texts with pandas."""
MAX_PAGE_RATIO = 0.35
"""Maximum cost of any page, relative to reading the scores and texts with pandas."""
MAX_DIFFERENCES_RATIO = 4.0
"""Maximum cost of the first page of images that two metrics rank differently, relative to pandas."""
MAX_SECOND_PAGE_RATIO = 0.1
"""Maximum cost of the second page of images that two metrics rank differently, relative to the first."""
MAX_MEGABYTES = 1_500
"""Maximum memory of the process in MB, including up to 1,000 MB for DuckDB."""


def measure(folder: Path) -> dict[str, Any]:
    return dict(read_output("pages_of_scores", str(folder), str(N_PROMPTS * 5 // 8)))


def test_a_page_of_a_million_scores_costs_a_fraction_of_reading_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts(tmp_path, N_PROMPTS)
    for generator in GENERATORS:
        write_images(tmp_path, generator, N_PROMPTS)
    assert run_scripted_sweep(tmp_path, metrics=2)["exit_code"] == 0
    said = measure(tmp_path)
    with capsys.disabled():
        print(f"\npandas reads and sorts {N_PROMPTS * len(GENERATORS) * 2:,} scores: {said['whole']:.2f} s of CPU")
        for name, seconds in said["took"].items():
            print(f"{name}: {seconds:.3f} s of CPU, {seconds / said['whole']:.3f} times what pandas takes")
        print(f"peak memory {said['peak']:.0f} MB")
    opening, apart = (said["took"].pop(name) for name in ("opening", "what two metrics rank differently"))
    expect(
        apart < MAX_DIFFERENCES_RATIO * said["whole"]
        and said["took"]["its second page"] < MAX_SECOND_PAGE_RATIO * apart
    )
    expect(opening < MAX_OPENING_RATIO * said["whole"] and max(said["took"].values()) < MAX_PAGE_RATIO * said["whole"])
    expect(said["peak"] < MAX_MEGABYTES)
