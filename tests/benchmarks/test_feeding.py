"""Preparing images of 1024x1024 pixels from S3 uses all cores; plain loops in the same run measure the limit."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from plumbline.operators.images.decoding import ImageLimits, decode_bytes
from plumbline.operators.images.preparing import PreparedImages, prepare_images
from plumbline.operators.models.processing import PixelTransform
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.uris import UriReader
from tests.benchmarks.photographs import make_photograph
from tests.benchmarks.size import choose_size, expect, start_fresh_process
from tests.operators.tiny import encode_image
from tests.s3 import S3Server

IMAGE_SIDE = choose_size(1024, 64)
N_PHOTOGRAPHS = choose_size(8, 1)
N_ROUNDS = choose_size(3, 1)
SAVE_OPTIONS_BY_FORMAT: dict[str, dict[str, Any]] = {"PNG": {}, "JPEG": {"quality": 92}}
CLIP_L_336_PROCESSOR = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
N_CORES = len(os.sched_getaffinity(0))
MIN_SHARE_OF_CORES = 0.8


class ShardTables(NamedTuple):
    """A shard's images in two tables: embedded, and referred to by address."""

    embedded: pa.Table
    by_uri: pa.Table
    uris: UriReader


@pytest.fixture(scope="module", params=SAVE_OPTIONS_BY_FORMAT)
def shard(request: pytest.FixtureRequest, s3_server: S3Server) -> Iterator[ShardTables]:
    """Write images to the server; yield a table that contains the images and a table that refers to them."""
    fs, bucket = s3_server.filesystem(), f"feeding-{request.param.lower()}"
    fs.mkdir(bucket)
    contents = [
        encode_image(make_photograph(seed, IMAGE_SIDE), request.param, **SAVE_OPTIONS_BY_FORMAT[request.param])
        for seed in range(N_PHOTOGRAPHS)
    ]
    contents *= 12 if request.param == "JPEG" else 4
    places = [f"s3://{bucket}/{number}" for number in range(len(contents))]
    for place, content in zip(places, contents, strict=True):
        fs.pipe_file(place, content)
    ids = {"image_id": places, "prompt_id": ["p"] * len(places)}
    server = StorageConfig(endpoint_url=s3_server.endpoint, key=s3_server.key, secret=s3_server.secret)
    uris = UriReader(roots=(f"s3://{bucket}",), storage=server, max_bytes=ImageLimits().max_bytes)
    yield ShardTables(pa.table(ids | {"image": contents}), pa.table(ids | {"uri": places}), uris)
    fs.rm(bucket, recursive=True)


def measure_rates(*calls: Callable[[], int]) -> list[float]:
    """Return the images per second of each call: the median over rounds; the calls alternate."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(N_ROUNDS):
        for call, taken in zip(calls, seconds, strict=True):
            began = time.monotonic()
            images = call()
            taken.append((time.monotonic() - began) / images)
    return [1 / statistics.median(taken) for taken in seconds]


def run_bare_loop(table: pa.Table, uris: UriReader) -> int:
    """Prepare the images one after another on one core (fetch, decode, preprocess); return their number."""
    torch.set_num_threads(1)
    preprocess = PixelTransform(CLIP_L_336_PROCESSOR, pad_to_square=True)
    for record in table.to_pylist():
        image = decode_bytes(record.get("image") or uris.read(record["uri"]), ImageLimits())
        assert isinstance(image, Image.Image)
        preprocess(image)
    return len(table)


@contextmanager
def start_loops_on_all_cores(table: pa.Table, uris: UriReader) -> Iterator[Callable[[], int]]:
    """Yield a function that prepares the images with one loop per core, each in its own process.

    The loops show how many images the cores can prepare at most, even on a busy machine.
    """
    share = -(-len(table) // N_CORES)
    shares = [table.take(list(range(len(table)))[first : first + share]) for first in range(0, len(table), share)]
    with ExitStack() as stack:
        pools = [stack.enter_context(start_fresh_process()) for _ in shares]

        def run() -> int:
            began = [pool.submit(run_bare_loop, part, uris) for pool, part in zip(pools, shares, strict=True)]
            return sum(loop.result() for loop in began)

        run()  # imports and connections
        yield run


@pytest.mark.parametrize("way", ["embedded", "by_uri"])
def test_a_shard_is_prepared_by_all_cores(shard: ShardTables, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    table: pa.Table = getattr(shard, way)
    preprocess = PixelTransform(CLIP_L_336_PROCESSOR, pad_to_square=True)

    def prepare(decoders: int) -> PreparedImages:
        return prepare_images(
            table, "g", preprocess=preprocess, limits=ImageLimits(), fetch=shard.uris.read, decoders=decoders
        )

    with start_loops_on_all_cores(table, shard.uris) as loops:
        one, cores, many = measure_rates(
            lambda: run_bare_loop(table, shard.uris), loops, lambda: len(prepare(N_CORES).pixels)
        )
    torch.set_num_threads(before)
    assert all(map(torch.equal, prepare(1).pixels, prepare(N_CORES).pixels))
    size = (shard.embedded.nbytes / len(table)) / 1000
    with capsys.disabled():
        print(
            f"\n{IMAGE_SIDE}x{IMAGE_SIDE} images of {size:.0f} KB, {way}, {N_CORES} cores: one loop decodes {one:.0f} "
            f"images/s, one loop per core {cores:.0f} images/s, and {N_CORES} decoders {many:.0f} images/s: "
            f"{many / one / N_CORES:.2f} of {N_CORES} times the rate of one loop, and {many / cores:.2f} of the rate "
            f"of one loop per core (target: at least {MIN_SHARE_OF_CORES})"
        )
    expect(many >= MIN_SHARE_OF_CORES * cores)
