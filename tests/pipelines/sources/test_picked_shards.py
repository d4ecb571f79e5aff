"""A shard that covers only some rows of its file is planned from the prompts of exactly those rows."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources import adaptive_rounds
from plumbline.pipelines.sources.adaptive_rounds import split_rounds
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, ColumnsConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import ShardSize, read_shard
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sources.uris import open_benchmark_uris
from plumbline.pipelines.store.cells import digest
from tests.bench_of import list_sources, make_sweep_config, read_image_rows, read_prompt_rows, run_config, write_rows

STORAGE_CONFIG = StorageConfig()
GENERATORS = ("atlas", "flint")


def write_row_groups(path: Path, rows: Sequence[Any], sizes: Sequence[int]) -> None:
    """Write rows as a Parquet file with row groups of these sizes, repeated cyclically."""
    table = pa.Table.from_pylist([{**row, "row": number} for number, row in enumerate(rows)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema) as writer:
        first = 0
        for size in itertools.cycle(sizes):
            if first >= len(rows):
                break
            writer.write_table(table.slice(first, size))
            first += size


@st.composite
def draw_benchmark(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a benchmark with up to 4 images per generator and prompt, shuffled, in uneven row groups.

    The drawn values are the prompts' order, the prompt of each generator's image, the sizes of row groups and shards,
    the limit, whether only some prompts are used, and whether rows contain their own prompts.
    """
    count = draw(st.integers(1, 40))
    generator_rows = {}
    for generator in GENERATORS:
        copies = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        of_images = [f"p{prompt}" for prompt, several in enumerate(copies) for _ in range(several)]
        generator_rows[generator] = draw(st.permutations(of_images or ["p0"]))
    return {
        "order": draw(st.permutations([f"p{prompt}" for prompt in range(count)])),
        "images": generator_rows,
        "sizes": draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)),
        "shard_rows": draw(st.integers(1, 9)),
        "limit": draw(st.none() | st.integers(1, count)),
        "some": draw(st.booleans()),
        "own": draw(st.booleans()),
    }


def open_bench(folder: Path, bench: dict[str, Any]) -> tuple[BenchmarkConfig, Sources]:
    texts = [{"prompt_id": one, "text": f"text of {one}"} for one in bench["order"]]
    if bench["some"]:
        texts = texts[: (len(texts) + 1) // 2]
    write_row_groups(folder / "prompts.parquet", texts, bench["sizes"][::-1])
    for generator, of_images in bench["images"].items():
        rows = [{"prompt_id": one, "prompt": f"text of {one}", "image": b"pixels"} for one in of_images]
        write_row_groups(folder / f"images/{generator}/0.parquet", rows, bench["sizes"])
    config = BenchmarkConfig(
        name="drawn",
        prompts=None if bench["own"] else f"{folder}/prompts.parquet",
        images=f"{folder}/images",
        columns=ColumnsConfig(prompt="prompt"),
        require_every_image=not bench["some"],
        limit=bench["limit"],
    )
    return config, list_sources(config, ShardSize(bench["shard_rows"]))


def check_shards(sources: Sources, bench: dict[str, Any]) -> None:
    """Check that every shard reads the prompts of its own rows, and that each row is in at most one shard."""
    seen = []
    known = dict(zip(*(sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))
    for shard, holders in sources.prompts_of.items():
        rows = [shard.get_row_in_file(row) for row in range(shard.rows)]
        seen += [(shard.group, row) for row in rows]
        ids = [bench["images"][shard.group][row] for row in rows]
        read = read_shard(shard, ("prompt_id",))
        assert read.column("prompt_id").to_pylist() == ids
        pairs = [(one, known.get(one)) for one in sorted(set(ids))]
        if bench["own"]:
            assert shard.prompts == digest(pairs) and [holder.prompts for holder in holders] == [shard.prompts]
        else:
            assert shard.prompts == digest(pairs)
            named = {sources.prompts.column("prompt_id")[int(row)].as_py() for row in sources.prompt_rows[shard]}
            assert named == set(ids) & known.keys()
    assert len(seen) == len(set(seen))
    left_out = bench["limit"] is not None or bench["some"]
    scored = [
        (generator, row)
        for generator, ids in bench["images"].items()
        for row, one in enumerate(ids)
        if one in known or not left_out
    ]
    assert sorted(seen) == sorted(scored)


@settings(max_examples=30)
@given(bench=draw_benchmark())
def test_shards_of_some_prompts_depend_on_the_prompts_of_their_own_rows(bench: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_shards(open_bench(Path(folder), bench)[1], bench)


@settings(max_examples=30)
@given(bench=draw_benchmark(), seed=st.integers(0, 1000))
def test_shards_of_rounds_depend_on_the_prompts_of_their_own_rows(bench: dict[str, Any], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive_rounds, "N_FIRST_PROMPTS", 4)
        config, sources = open_bench(Path(folder), bench)
        cut = split_rounds(
            sources,
            config,
            open_benchmark_uris(config, STORAGE_CONFIG, ImageLimits()),
            AdaptiveConfig(method="betting", range=(0, 1), seed=seed),
            ImageFileCache(None, config),
        )
        check_shards(cut.sources, bench)
        ids = cut.sources.prompts.column("prompt_id").to_pylist()
        of_round = dict(zip(ids, cut.round_of_prompt, strict=True))
        for shard in cut.sources.image_shards:
            rows = map(shard.get_row_in_file, range(shard.rows))
            named = {bench["images"][shard.group][row] for row in rows} & of_round.keys()
            assert {of_round[one] for one in named} <= {cut.round_of[shard.group, shard.name]}


def test_prompts_that_follow_left_out_prompts_keep_their_own_scores(tmp_path: Path) -> None:
    """The limit includes all rows of the first row group, but only the last row of the second row group."""
    texts = [*read_prompt_rows(2), read_prompt_rows(3)[2], *read_prompt_rows(10)[9:]]
    of_prompt = read_image_rows("atlas", 10)
    for generator in GENERATORS:
        write_row_groups(tmp_path / f"images/{generator}/0.parquet", [of_prompt[n] for n in (0, 1, 9, 2)], [2])
    write_rows(tmp_path / "prompts.parquet", texts)
    config = make_sweep_config(tmp_path, tmp_path / "store", "metric=[clipscore]", "benchmark.limit=3", "shard_rows=2")
    scored = run_config(config)
    assert (scored.results.rows, scored.results.n_null) == (6, 0)
    texts[2] = {**texts[2], "text": "a green circle"}
    write_rows(tmp_path / "prompts.parquet", texts)
    edited = run_config(config)
    before, after = (dict(list_scores(run.results.read_scores())) for run in (scored, edited))
    changed = {image for image, score in after.items() if score != before[image]}
    assert changed == {image for image in after if image[1] == texts[2]["prompt_id"]}


def list_scores(scores: pa.Table) -> list[tuple[tuple[str, str], float]]:
    return [((row["generator"], row["prompt_id"]), row["score"]) for row in scores.to_pylist()]
