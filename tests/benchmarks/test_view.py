"""What a page of a million scores costs, beside reading and sorting the whole table with pandas."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripted_sweep import write_images, write_prompts
from tests.benchmarks.size import sized, wanted
from tests.benchmarks.test_results import GENERATORS, said_by, swept

PROMPTS = sized(200_000, 500)
"""With five generators and one metric a million rows."""
OPENING = 4.0
"""The most that opening a run may take, of what pandas takes to read its scores with the prompts' texts."""
PAGE = 0.35
"""The most that any page may take of that."""
MEGABYTES = 1_500
"""Below it the process stays: DuckDB's share is 1,000."""
MEASURED = """
import json, sys, tempfile, time
from pathlib import Path
import pandas as pd
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.viewing.browser import Browser
from plumbline.pipelines.viewing.run_database import Database, Wanted
from tests.benchmarks.scripted_sweep import peak_megabytes

def seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began

def page(**wanted):
    asked = Wanted(**wanted)
    first = rows.count(asked) // 2 // 50 * 50 if "middle" in name else 0
    assert rows.find(asked, first, 50)

middle, folder, run_id = int(sys.argv[2]), Path(sys.argv[1]), Path(sys.argv[1], "store/runs/latest").read_text().strip()
browser = Browser(Store(StorageConfig().locate(str(folder / "store"))), Database(Path(tempfile.mkdtemp()), 1000))
took = {"opening": seconds(lambda: browser.open(run_id).result())}
rows = browser.open(run_id).result().rows
pages = {
    "first page": {}, "lowest": {"sort": "lowest"}, "a generator's lowest": {"generator": "cobalt", "sort": "lowest"},
    "the middle of the highest": {"sort": "highest"}, "a range": {"low": 0.5, "high": 0.5 + 5 / middle},
    "a skill's highest": {"skill": "negation", "sort": "highest"}, "words": {"words": f"TEAPOT {middle}"},
    "an id": {"words": f"cobalt-{middle:07d}"},
}
for name, wanted in pages.items():
    took[name] = min(seconds(lambda: page(**wanted)) for _ in range(3))
took["a prompt with its ranks"] = min(seconds(lambda: rows.of_prompt(f"prompt-{middle:06d}", 600)) for _ in range(3))
peak = peak_megabytes()

def with_pandas():
    scores = pd.read_parquet(folder / "store/runs" / run_id / "scores.parquet")
    texts = pd.read_parquet(folder / "prompts.parquet", columns=["prompt_id", "text"])
    scores.merge(texts, on="prompt_id", how="left").sort_values("score").head(50)

whole = seconds(with_pandas)
browser.close()
print(json.dumps({"took": took, "whole": whole, "peak": peak}))
"""


def measured(folder: Path) -> dict[str, Any]:
    return dict(said_by("-c", MEASURED, str(folder), str(PROMPTS * 5 // 8)))


def test_a_page_of_a_million_scores_costs_a_part_of_reading_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts(tmp_path, PROMPTS)
    for generator in GENERATORS:
        write_images(tmp_path, generator, PROMPTS)
    assert swept(tmp_path)["exit_code"] == 0
    said = measured(tmp_path)
    with capsys.disabled():
        print(f"\npandas reads and sorts {PROMPTS * len(GENERATORS):,} scores: {said['whole']:.2f} s of CPU")
        for name, seconds in said["took"].items():
            print(f"{name}: {seconds:.3f} s of CPU, {seconds / said['whole']:.3f} of that")
        print(f"at most {said['peak']:.0f} MB")
    opening = said["took"].pop("opening")
    wanted(opening < OPENING * said["whole"] and max(said["took"].values()) < PAGE * said["whole"])
    wanted(said["peak"] < MEGABYTES)
