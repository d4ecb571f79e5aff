"""Measures a whole sweep with one metric, from reading PNG shards on S3 to committing cells.

The sweep uses the pool of `cluster=gpu1`.
"""

import os
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.profiler import ProfilerActivity, profile

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.models import loading
from plumbline.operators.models.calls import LikelihoodModel
from plumbline.operators.models.model import ResolvedModel
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.running.events import NodeProgress, ProgressTotals
from plumbline.pipelines.sweeps.computing import compute_missing_cells
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.s3 import S3Server

NODE_NAME = "answers:own"


class ImageShards(NamedTuple):
    """One generator's images as PNG and the text that each should show.

    `save` writes them to a bucket as `count` shards, each of which contains all the images.
    """

    encoded: Sequence[bytes]
    texts: Sequence[str]
    count: int
    bucket: str

    def save(self, server: S3Server) -> None:
        files, ids = server.filesystem(), [str(number) for number in range(len(self.texts))]
        files.mkdir(self.bucket)
        prompts = {"prompt_id": ids, "text": list(self.texts)}
        files.pipe_file(f"{self.bucket}/prompts.parquet", _make_parquet(prompts))
        images = pa.array(self.encoded, pa.large_binary())
        for shard in range(self.count):
            rows = {"image_id": [f"{shard}-{name}" for name in ids], "prompt_id": ids, "image": images}
            files.pipe_file(f"{self.bucket}/images/random/{shard:05}.parquet", _make_parquet(rows))


class SweepMeasurements(NamedTuple):
    rate: float
    """Images per wall-clock second."""
    busy: float
    """Fraction of the sweep's time that the device was computing or, on a CPU, that the model was busy."""
    decoders: int
    """Number of images read, decoded and preprocessed in parallel."""


def measure_sweep(
    resolved: ResolvedModel, model: LikelihoodModel, shards: ImageShards, server: S3Server
) -> SweepMeasurements:
    """Measure a sweep that asks whether each image shows its text, with a model that is already loaded."""
    with patch.dict(os.environ, server.environment()), patch.object(loading, "load", lambda *_: model):
        shards.save(server)
        config = make_sweep_config(resolved, shards)
        node = _compute(config)
        busy = node.worked / node.seconds
        if resolved.on_gpu:  # in a separate sweep, because recording every kernel takes some time
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as kernels:
                profiled = _compute(make_sweep_config(resolved, shards, store="profiled"))
            busy = sum_kernel_seconds(kernels) / profiled.seconds
    return SweepMeasurements(node.rows / node.seconds, busy, config.cluster.find_pool(NODE_NAME).decoders or 0)


def sum_kernel_seconds(kernels: Any) -> float:
    """Return the seconds of the recorded kernels, which never overlap here; memory transfers do not count."""
    recorded = [event for event in kernels.key_averages() if event.device_type.name == "CUDA"]
    computing = [event for event in recorded if not event.key.startswith(("Memcpy", "Memset"))]
    return sum(float(event.self_device_time_total) for event in computing if not event.is_user_annotation) / 1e6


def make_sweep_config(resolved: ResolvedModel, shards: ImageShards, store: str = "store") -> SweepConfig:
    """Configure a sweep in this process with as many decoders as an actor of `cluster=gpu1` has on this machine."""
    own, place = resolved.config, f"s3://{shards.bucket}"
    model = (
        f"{{family: {own.family}, checkpoint: '{resolved.folder('checkpoint')}', dtype: {resolved.dtype}, "
        f"image_batch: {own.image_batch}, pair_batch: {own.pair_batch}}}"
    )
    given = [
        "sweep=own_images", "metric=[vqascore]", f"+models.own={model}", "metrics.vqascore.model=own",
        f"benchmark.prompts={place}/prompts.parquet", f"benchmark.images={place}/images", f"store={place}/{store}",
        f"shard_rows={len(shards.texts)}", "cluster=gpu1", "cluster.executor=here",
    ]  # fmt: skip
    given += [] if resolved.on_gpu else ["cluster.pools.answers.num_gpus=0"]
    pool = read_config(load_values(get_command("sweep"), given), SweepConfig).cluster.find_pool(NODE_NAME)
    decoders = pool.count_decoders(len(os.sched_getaffinity(0)), torch.cuda.device_count())
    values = load_values(get_command("sweep"), [*given, f"cluster.pools.answers.decoders={decoders}"])
    return read_config(values, SweepConfig)


def _compute(config: SweepConfig) -> NodeProgress:
    """Run the sweep, and return the progress of its answers stage; raise RuntimeError if a row fails."""
    totals = ProgressTotals()
    outcomes = compute_missing_cells(plan_sweep(config), totals.add)
    for path, outcome in outcomes.items():
        if outcome.state == "failed" or outcome.errors:
            raise RuntimeError(f"{path}: {outcome.message or dict(outcome.kinds)}")
    return totals.nodes[NODE_NAME]


def _make_parquet(columns: dict[str, Any]) -> bytes:
    stream = BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()
