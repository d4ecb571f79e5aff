"""How many requests a sweep makes of S3, counted at the wire: S3 allows so many a second below one prefix."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fsspec
import pytest

from plumbline.jobs import sweep
from plumbline.pipelines.ingest import drafting
from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import images, prompts, sweep_config, write_rows
from tests.benchmarks.size import sized
from tests.benchmarks.small_images import write_tars
from tests.faults.proxy import FaultProxy

METRICS = ("vqascore", "clipscore")
CELLS = 2 + len(METRICS)
"""Of an images shard: answers, similarities, and the scores of both."""
FEW, MANY = sized((2, 10), (1, 2))
"""Shards of four images."""
WRITES = 1
"""Of a cell."""
READS = 2
"""Of a cell at most, with those of its source, of the cells that it stands on, and of the run that it is part of."""
LARGER = 2
"""How many more requests it may take to read what lists more shards."""


def test_a_cell_is_written_by_one_request_and_a_night_without_news_asks_for_none(
    proxy: FaultProxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = (nights(proxy, tmp_path / str(shards), f"{bucket}/{shards}", shards) for shards in (FEW, MANY))
    shard = {kind: (count - few[0][kind]) / (MANY - FEW) for kind, count in many[0].items()}
    with capsys.disabled():
        print(f"\nan images shard of {CELLS} cells: {said(shard)}")
        print(f"a run of {MANY} shards whatever it computes: {said(few[0])} less {FEW} of these")
        print(f"a night without news: {said(few[1])} over {FEW} shards, {said(many[1])} over {MANY}")
    assert shard["PUT"] == CELLS * WRITES
    assert shard["GET"] <= CELLS * READS
    assert not shard["HEAD"], "every answer to a GET has the ETag by which a file is known"
    assert many[1].total() <= few[1].total() + LARGER


def test_an_ingest_takes_as_many_requests_for_every_further_tar(
    proxy: FaultProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(drafting, "PATIENCE", math.inf)
    few, many = (requests_of_an_ingest(proxy, tmp_path / str(tars), f"{bucket}/{tars}", tars) for tars in (FEW, MANY))
    tar = {kind: (count - few[kind]) / (MANY - FEW) for kind, count in many.items()}
    with capsys.disabled():
        print(f"\na tar of 40 images, one shard: {said(tar)}; an ingest of {FEW} of them: {said(few)}")
    assert tar["PUT"] == 2, "the shard, and the note that the tar was read to its end"
    assert tar["GET"] + tar["HEAD"] <= 2 * READS


def requests_of_an_ingest(proxy: FaultProxy, folder: Path, bucket: str, tars: int) -> Counter[str]:
    write_tars(folder / "in", 40 * tars, 40)
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/in/", f"{bucket}/in/", recursive=True)
    config = IngestConfig(output=f"{bucket}/out", generator="sdxl", tars=f"{bucket}/in")
    return counted(proxy, lambda: ingest(config, lambda record: None).exit_code)


def nights(proxy: FaultProxy, folder: Path, bucket: str, shards: int) -> tuple[Counter[str], Counter[str]]:
    """The requests of computing one generator's images in so many shards, and those of a later sweep without news."""
    write_rows(folder / "prompts.parquet", prompts(4 * shards), row_group=4 * MANY)
    write_rows(folder / "images/atlas/00000.parquet", images("atlas", 4 * shards), row_group=4)
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/", f"{bucket}/bench/", recursive=True)
    config = sweep_config(f"{bucket}/bench", f"{bucket}/store", f"metric=[{','.join(METRICS)}]")
    computed = counted(proxy, lambda: run_sweep(plan_sweep(config), lambda progress: None).exit_code)
    assert sweep.main(config) == 0  # its report looks at some images of every run
    return computed, counted(proxy, lambda: sweep.main(config))


def counted(proxy: FaultProxy, call: Callable[[], int]) -> Counter[str]:
    """The requests of what ends with exit code 0, by their kind, without signs of life, which go with the time."""
    before = len(proxy.requests)
    assert call() == 0
    return Counter(kind_of(request) for request in proxy.requests[before:] if "/sweeps/" not in request)


def kind_of(request: str) -> str:
    """The method, or LIST for a look into a folder."""
    method, target, _ = request.split()
    return "LIST" if "list-type" in parse_qs(urlsplit(target).query) else method


def said(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {kind}" for kind, count in sorted(counts.items()) if count)
