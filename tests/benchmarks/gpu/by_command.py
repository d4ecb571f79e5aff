"""Runs a sweep with the plumbline command, on Ray: by_command MODEL FOLDER [--images N] [OVERRIDE ...].

It is started with python -m tests.benchmarks.gpu.by_command. It writes a checkpoint with random weights, which is
full-size if there is a CUDA device. It also writes N photographs of 1024 x 1024 pixels to Parquet files, as PNGs. Then
plumbline sweep scores them with VQAScore and `cluster=gpu1`, or `cluster=local` if there is no GPU. Images per second,
and the model's working and waiting times, are read from the run's manifest and printed. Existing files are kept.
"""

import argparse
import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5, name_released_weights
from tests.benchmarks.gpu.checkpoints import make_random_network
from tests.benchmarks.gpu.measures import N_IMAGES, make_text
from tests.benchmarks.gpu.shapes import FAMILY_BY_MODEL, FULL_SHAPES, TINY_SHAPES
from tests.benchmarks.photographs import make_photograph

SHARD_ROWS = 64
NODE_NAME = "answers:own"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu.by_command", description=__doc__)
    parser.add_argument("model", choices=list(FAMILY_BY_MODEL))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("overrides", nargs="*", help="further overrides for plumbline sweep")
    told = parser.parse_args(arguments)
    folder, on_gpu = told.folder.absolute(), torch.cuda.is_available()
    texts = [make_text(prompt, 0) for prompt in range(told.images)]
    shape = (FULL_SHAPES if on_gpu else TINY_SHAPES)[told.model]
    _save_checkpoint(folder / told.model, told.model, texts, on_gpu=on_gpu)
    _save_images(folder / "data", texts, shape.side)
    model = f"{{family: {FAMILY_BY_MODEL[told.model]}, checkpoint: '{folder / told.model}'}}"
    store = folder / f"store-{time.time_ns()}"
    command = [
        sys.executable, "-m", "jobs.sweep", "sweep=own_images", "metric=[vqascore]", f"+models.own={model}",
        "metrics.vqascore.model=own", f"benchmark.prompts={folder}/data/prompts.parquet",
        f"benchmark.images={folder}/data/images", f"store={store}", f"shard_rows={SHARD_ROWS}",
        f"cluster={'gpu1' if on_gpu else 'local'}", *told.overrides,
    ]  # fmt: skip
    began = time.monotonic()
    code = subprocess.run(command).returncode
    print(f"{told.images} images in {time.monotonic() - began:.0f} s, from the start of the command to its exit")
    for manifest in sorted(store.glob("runs/*/manifest.json")):
        run = json.loads(manifest.read_text())
        seconds, rows = run["seconds"][NODE_NAME], run["counts"]["rows"] - run["counts"]["rows_null"]
        times = {name: round(run[name][NODE_NAME] / seconds, 2) for name in ("worked", "waited")}
        print(
            json.dumps({"model": told.model, "images_a_second": round(rows / seconds, 2), "seconds": seconds, **times})
        )
    return code


def _save_checkpoint(folder: Path, name: str, texts: Sequence[str], *, on_gpu: bool) -> None:
    if folder.exists():
        return
    spoken = [*(question.template for question in DEFAULT_QUESTIONS.values()), *texts]
    device, dtype = (torch.device("cuda"), torch.bfloat16) if on_gpu else (torch.device("cpu"), torch.float32)
    network = make_random_network(name, (FULL_SHAPES if on_gpu else TINY_SHAPES)[name], folder, spoken, device, dtype)
    if isinstance(network, ClipFlanT5):
        weights = {name: tensor.cpu() for name, tensor in name_released_weights(network).items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        (folder / "model.safetensors").unlink()
        network.save_pretrained(folder)


def _save_images(folder: Path, texts: Sequence[str], side: int) -> None:
    if folder.exists():
        return
    (folder / "images" / "random").mkdir(parents=True)
    ids = [f"prompt-{number:06d}" for number in range(len(texts))]
    pq.write_table(pa.table({"prompt_id": ids, "text": texts}), folder / "prompts.parquet")
    pictures = []
    for seed in range(N_IMAGES):
        stream = io.BytesIO()
        make_photograph(seed, side).save(stream, "PNG")
        pictures.append(stream.getvalue())
    for first in range(0, len(ids), SHARD_ROWS):
        names = ids[first : first + SHARD_ROWS]
        images = pa.array([pictures[place % N_IMAGES] for place in range(len(names))], pa.large_binary())
        table = pa.table({"image_id": names, "prompt_id": names, "image": images})
        pq.write_table(table, folder / "images" / "random" / f"{first:07d}.parquet", compression="none")


if __name__ == "__main__":
    sys.exit(main())
