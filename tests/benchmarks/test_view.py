"""What a page of a million scores costs, beside reading and sorting the whole table with pandas."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripted_sweep import write_images, write_prompts
from tests.benchmarks.size import said_by, sized, wanted
from tests.benchmarks.test_results import GENERATORS, swept

PROMPTS = sized(100_000, 500)
"""With five generators and two metrics a million rows."""
OPENING = 4.0
"""The most that opening a run may take, of what pandas takes to read its scores with the prompts' texts."""
PAGE = 0.35
"""The most that any page may take of that."""
APART = 4.0
"""The most that the first page of what two metrics rank differently may take of that."""
AGAIN = 0.1
"""The most that its second page may take of its first."""
MEGABYTES = 1_500
"""Below it the process stays: DuckDB's share is 1,000."""


def measured(folder: Path) -> dict[str, Any]:
    return dict(said_by("pages_of_scores", str(folder), str(PROMPTS * 5 // 8)))


def test_a_page_of_a_million_scores_costs_a_part_of_reading_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts(tmp_path, PROMPTS)
    for generator in GENERATORS:
        write_images(tmp_path, generator, PROMPTS)
    assert swept(tmp_path, metrics=2)["exit_code"] == 0
    said = measured(tmp_path)
    with capsys.disabled():
        print(f"\npandas reads and sorts {PROMPTS * len(GENERATORS) * 2:,} scores: {said['whole']:.2f} s of CPU")
        for name, seconds in said["took"].items():
            print(f"{name}: {seconds:.3f} s of CPU, {seconds / said['whole']:.3f} of that")
        print(f"at most {said['peak']:.0f} MB")
    opening, apart = (said["took"].pop(name) for name in ("opening", "what two metrics rank differently"))
    wanted(apart < APART * said["whole"] and said["took"]["its second page"] < AGAIN * apart)
    wanted(opening < OPENING * said["whole"] and max(said["took"].values()) < PAGE * said["whole"])
    wanted(said["peak"] < MEGABYTES)
