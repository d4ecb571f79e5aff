"""The pools of `cluster=gpu1` can feed each model at 60% of a GPU's peak.

An H200 computes about 790 Tflop/s of dense bfloat16, and its hosts have about 24 cores per GPU. The processor time per
image is measured here on one core: the image is read from a Parquet shard on S3, decoded from PNG and preprocessed.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest
import torch
from transformers import CLIPVisionConfig

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import prepare_images
from plumbline.operators.models.processing import PixelTransform, make_clip_processor
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.benchmarks.gpu import flops
from tests.benchmarks.gpu.measures import Workload, make_workload
from tests.benchmarks.gpu.shapes import FULL_SHAPES, TINY_SHAPES
from tests.benchmarks.gpu.stage import ImageShards, make_sweep_config
from tests.benchmarks.size import choose_size, expect
from tests.operators.tiny import refuse_fetch
from tests.s3 import S3Server

PEAK_FLOPS, SHARE_OF_PEAK = 790e12, 0.6
CORES_PER_GPU = 24, 16
"""Cores of a host per GPU: for an H200, and for smaller GPUs."""
N_IMAGES, N_ROUNDS = choose_size(8, 2), choose_size(3, 1)
SHAPE_BY_MODEL = choose_size(FULL_SHAPES, TINY_SHAPES)
MODELS: list[tuple[str, dict[str, Any]]] = [("clip-flant5-xl", {}), ("clip-flant5-xxl", {}), ("llava-1.5-7b", {})]
MODELS += [(name, {"max_pixels": side**2}) for name in ("qwen2.5-vl-7b", "qwen3-vl-8b") for side in (1024, 768, 512)]
VIT_H_CONFIG = CLIPVisionConfig(
    hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=16, patch_size=14
)
UNFEEDABLE_MODEL_CORES = {"ViT-H/14 (PickScore, HPSv2)": 50}
"""Cores per GPU for models that no host can feed, because they read an image 20 times faster than a PNG is decoded."""


class FeedingCost(NamedTuple):
    name: str
    operations: float
    """Floating-point operations for one pair of an image and a text."""
    milliseconds: float
    """Processor milliseconds for one image."""
    decoders: tuple[int, ...]
    """Number of decoders of an actor in the model's pool, for each number in CORES_PER_GPU."""

    @property
    def rate(self) -> float:
        """Pairs per second at SHARE_OF_PEAK of the GPU's peak."""
        return SHARE_OF_PEAK * PEAK_FLOPS / self.operations

    @property
    def cores(self) -> float:
        return self.rate * self.milliseconds / 1000

    def format_row(self) -> str:
        return (
            f"{self.name:28} {self.operations / 1e12:6.2f} {self.rate:8.0f} {self.milliseconds:8.1f} {self.cores:6.1f}"
            f"   {' '.join(f'{decoders:3}' for decoders in self.decoders)}"
        )


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(name: str, folder: Path, **options: Any) -> Workload:
    """Return a full-size model without weights, with images and questions for it."""
    folder.mkdir()
    return make_workload(name, SHAPE_BY_MODEL[name], folder, images=N_IMAGES, on_gpu=False, device="meta", **options)


def make_shard_reader(server: S3Server, load: Workload) -> Callable[[], pa.Table]:
    """Save the model's images as a shard; return a function that reads the shard as a worker does."""
    shards = ImageShards(load.encoded, [of_image[0] for of_image in load.texts], 1, bucket="bench-pools")
    shards.save(server)
    plan = plan_sweep(make_sweep_config(load.resolved, shards)).plan
    (work,) = plan.iterate_work(plan.images)
    return lambda: read_shard(work.shard, IMAGE_COLUMNS)


def measure_image_milliseconds(call: Callable[[], object]) -> float:
    """Return the processor time per image in milliseconds: the minimum over several rounds of the call."""
    least = float("inf")
    for _ in range(N_ROUNDS + 1):
        began = time.process_time()
        call()
        least = min(least, time.process_time() - began)
    return 1000 * least / N_IMAGES


def test_the_shipped_pools_feed_every_model(
    one_thread: None, tmp_path: Path, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    values = load_values(get_command("sweep"), ["sweep=own_images", "benchmark.prompts=p", "benchmark.images=i",
                                               "store=s", "cluster=gpu1"])  # fmt: skip
    cluster = read_config(values, SweepConfig).cluster
    with patch.dict(os.environ, s3_server.environment()):
        first = make_model(MODELS[0][0], tmp_path / "first")
        read = make_shard_reader(s3_server, first)
        table, reading = read(), measure_image_milliseconds(read)

    def measure_feeding(name: str, stage: str, operations: float, preprocess: Callable[[Any], Any]) -> FeedingCost:
        preparing = measure_image_milliseconds(
            lambda: prepare_images(table, "g", preprocess=preprocess, limits=ImageLimits(), fetch=refuse_fetch)
        )
        return FeedingCost(name, operations, reading + preparing, count_decoders(cluster, stage))

    rows = []
    for name, options in MODELS:
        load = make_model(name, tmp_path / f"{name}{options}", **options)
        size = f" {round(options['max_pixels'] ** 0.5)}" if options else ""
        operations = flops.count_pair_flops(load.model, load.pixels[0], load.questions[0][0])
        rows.append(measure_feeding(f"{name}{size}", "answers", operations, load.model.preprocess))
    seen = flops.count_clip_vision_flops(VIT_H_CONFIG, VIT_H_CONFIG.num_hidden_layers)
    transform = PixelTransform(make_clip_processor(VIT_H_CONFIG.image_size), pad_to_square=False)
    rows.append(measure_feeding(next(iter(UNFEEDABLE_MODEL_CORES)), "similarities", seen, transform))
    with capsys.disabled():
        print(
            f"\n{'':28} Tflop  pairs/s at {SHARE_OF_PEAK:.0%}  ms  cores   decoders with {CORES_PER_GPU} cores per GPU"
        )
        print("\n".join(row.format_row() for row in rows))
    short = {row.name: row.cores for row in rows if row.cores > min(row.decoders)}
    expect(
        short.keys() == UNFEEDABLE_MODEL_CORES.keys()
        and all(short[name] < 1.5 * cores for name, cores in UNFEEDABLE_MODEL_CORES.items())
    )


def count_decoders(cluster: ClusterConfig, stage: str) -> tuple[int, ...]:
    return tuple(cluster.find_pool(stage).count_decoders(cores, 1) for cores in CORES_PER_GPU)
