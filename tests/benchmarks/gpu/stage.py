"""The answers stage over shards of encoded images as a worker runs it: one shard is made ready while another is asked.

Parquet is read from a local disk, and no cell is committed; Ray and the store have benchmarks of their own.
"""

import io
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.decoding import ImageLimits
from plumbline.operators.metrics.vqascore import VqaScoreConfig
from plumbline.operators.models.calls import LikelihoodModel
from plumbline.operators.models.vqa_profiles import VqaProfile
from plumbline.operators.stages.answers import AnswersStage
from plumbline.operators.stages.questions import write
from plumbline.operators.stages.stage import Inputs, StageOptions, Upstream

CALLS = 2
"""At once in a worker, as in pipelines/running/actor.py."""


def stage_seconds(
    model: LikelihoodModel,
    profile: VqaProfile | None,
    pictures: Sequence[Image.Image],
    texts: Sequence[str],
    folder: Path,
    *,
    image_batch: int,
    shards: int,
) -> float:
    """Seconds of so many shards of these pictures, each asked whether it shows the text beside it."""
    assert profile is not None, "it is a VQA model"
    metric = VqaScoreConfig().settled(lambda role: profile)
    prompts = rows.table([{"prompt_id": str(n), "text": text} for n, text in enumerate(texts)], schemas.PROMPTS)
    written = write(prompts, metric, None)
    _save_shard(folder / "shard.parquet", pictures)
    options = StageOptions(ImageLimits(), _no_address, image_batch=image_batch, decoders=os.cpu_count() or 1)
    stage = AnswersStage({"vqascore": metric}, {"model": model}, options)
    upstream = {"vqascore": {"questions": _upstream("questions", written)}}
    asking = Lock()

    def run(shard: int) -> None:
        table = pq.read_table(folder / "shard.parquet")
        given = Inputs("bench", table, ("vqascore",), upstream, _upstream("prompts", prompts))
        prepared = stage.prepare(given)
        with asking:
            answers = stage.compute(prepared)["vqascore"]
        failed = [error for error in answers["error"].to_pylist() if error]
        if failed:
            raise RuntimeError(failed[0]["message"])

    run(0)
    began = time.perf_counter()
    with ThreadPoolExecutor(CALLS) as workers:
        list(workers.map(run, range(shards)))
    return time.perf_counter() - began


def _save_shard(file: Path, pictures: Sequence[Image.Image]) -> None:
    encoded = {id(picture): _png(picture) for picture in pictures}
    table = pa.table(
        {
            "image_id": [str(number) for number in range(len(pictures))],
            "prompt_id": [str(number) for number in range(len(pictures))],
            "image": pa.array([encoded[id(picture)] for picture in pictures], pa.large_binary()),
        }
    )
    pq.write_table(table, file)


def _png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def _upstream(name: str, table: pa.Table) -> Upstream:
    return Upstream((name,), lambda: [table], table.schema)


def _no_address(uri: str) -> bytes:
    raise AssertionError(f"nothing is fetched here, least of all {uri}")
