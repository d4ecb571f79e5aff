"""Parquet files with Arrow's view types, as Polars can write them, are read like files with plain strings and bytes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench_of import read_image_rows, read_prompt_rows, run_bench, write_benchmark, write_rows
from tests.commands import run

VIEW_TYPES = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


def convert_to_view_type(dtype: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(convert_to_view_type(field.type)) for field in dtype])
    if pa.types.is_list(dtype):
        return pa.large_list(dtype.value_field.with_type(convert_to_view_type(dtype.value_type)))
    return VIEW_TYPES.get(dtype, dtype)


def write_as_views(folder: Path) -> None:
    """Rewrite all Parquet files in a folder with string and binary views, in row groups of three."""
    for file in folder.rglob("*.parquet"):
        table = pq.read_table(file)
        schema = pa.schema([field.with_type(convert_to_view_type(field.type)) for field in table.schema])
        with pq.ParquetWriter(file, schema) as writer:
            for start in range(0, len(table), 3):  # Arrow cannot slice views itself
                writer.write_table(pa.Table.from_pylist(table.slice(start, 3).to_pylist(), schema))
        assert "string_view" in str(pq.read_schema(file))


def write_benchmark_twice(folder: Path) -> tuple[Path, Path]:
    """Write a benchmark twice, with plain types and with views; return both folders.

    Its rows are shuffled, and have skills and extra columns.
    """
    for name in ("plain", "views"):
        write_benchmark(folder / name, count=11)
        rows = [{**row, "level": "hard" if number % 3 else "easy"} for number, row in enumerate(read_prompt_rows(11))]
        write_rows(folder / name / "prompts.parquet", rows)
        for generator in ("atlas", "flint"):
            of_images = [
                {**row, "image": {"bytes": row["image"], "path": None}, "seed": f"s{number}"}
                for number, row in enumerate(read_image_rows(generator, 11))
            ]
            shuffled = [of_images[place] for place in np.random.default_rng(9).permutation(11)]
            write_rows(folder / name / f"images/{generator}/00000.parquet", shuffled, row_group=5)
    write_as_views(folder / "views")
    return folder / "plain", folder / "views"


@pytest.mark.parametrize(
    "words",
    [
        ["benchmark.limit=5"],
        ["benchmark.prompt_columns.where=[level:hard]", "benchmark.require_every_image=false"],
        ["benchmark.columns.extra=[seed]"],
    ],
    ids=["limit", "where", "extra"],
)
def test_a_sweep_of_views_has_the_same_scores_as_one_of_plain_types(words: list[str], tmp_path: Path) -> None:
    of_each, copied = [], []
    for folder in write_benchmark_twice(tmp_path):
        done = run_bench(
            folder,
            tmp_path / f"store of {folder.name}",
            "metric=[clipscore]",
            "sweep=own_images",
            "models=shapes",
            *words,
        )
        scores = pd.read_parquet(f"{done.folder}/scores.parquet")
        assert len(scores) and scores["score"].notna().all()
        of_each.append(
            scores.sort_values(["generator", "image_id"], ignore_index=True).drop(columns="run_id", errors="ignore")
        )
        exported, store = tmp_path / f"rewards of {folder.name}", f"store={tmp_path}/store of {folder.name}"
        ended = run("rewards", store, "format=pairs", "reward=clipscore", f"output={exported}")
        assert ended.code == 0, ended
        copied.append(
            [
                pq.read_table(file, columns=["jpg_0", "jpg_1"]).to_pylist()
                for file in sorted(exported.rglob("*.parquet"))
            ]
        )
    pd.testing.assert_frame_equal(*of_each)
    assert copied[0] == copied[1] and len(copied[0])
