"""The order of a benchmark's rows, and how they are divided into shards, do not change a run's summary at all."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.bench_of import list_arguments, read_image_rows, read_prompt_rows, write_rows
from tests.commands import find_newest_run_folder, run_for_output


def test_shuffled_images_and_prompts_have_the_same_summary_to_the_last_bit(tmp_path: Path) -> None:
    found = []
    for seed in range(2):
        random, folder = np.random.default_rng(seed), tmp_path / str(seed)
        for generator in ("atlas", "flint"):
            rows = [
                {**row, "image_id": f"{row['image_id']}-{copy}"}
                for row in read_image_rows(generator, 11)
                for copy in "xyz"
            ]
            random.shuffle(rows)
            write_rows(folder / "images" / generator / "00000.parquet", rows, row_group=5)
        write_rows(folder / "prompts.parquet", [read_prompt_rows(11)[place] for place in random.permutation(11)])
        words = list_arguments(folder, folder / "store", "sweep=own_images", "metric=[edge_density]", "shard_rows=5")
        run_for_output("sweep", *words)
        found.append(pq.read_table(find_newest_run_folder(folder / "store") / "summary.parquet"))
    assert len(found[0]) > 2
    assert found[0].equals(found[1])
