"""Trains a model that is split over two processes, and evaluates it. `accelerate launch` or `torchrun` runs this file.

The arguments are the folder of the evaluation, and a file to which this rank writes its results.
"""

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from PIL import Image
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import plumbline
from tests.environment import ROOT


@plumbline.metric(score_range=(0, 255))
def brightness(image: Image.Image, prompt: str) -> float:
    return float(np.asarray(image).mean())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3 * 8 * 8), nn.Sigmoid())


def make_pipeline(model: nn.Module) -> Any:
    def draw(prompts: list[str], seeds: list[int]) -> list[Image.Image]:
        noise = torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        pixels = (model(noise) * 255).byte().reshape(-1, 8, 8, 3).numpy()
        return [Image.fromarray(image) for image in pixels]

    return draw


def read_example() -> str:
    page = (ROOT / "plugins/training_loop/README.md").read_text()
    (example,) = (
        part for part in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "full_state_dict" in part
    )
    return str(example)


def train(model: nn.Module, n_steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        ((model(torch.randn(64, 8)) - 0.7) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fail_on_one_rank(evaluation: plumbline.Evaluation, rank: int) -> str:
    """Run a step in which rank 1 fails while other ranks wait for it; return this rank's error, or an empty string."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=2))

    def draw(prompts: list[str]) -> list[Image.Image]:
        if rank == 1:
            raise MemoryError("rank 1 is out of memory")
        dist.all_reduce(torch.ones(1), group=group)
        return []

    try:
        evaluation.step(draw, step=300)
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = fully_shard(make_model(), mesh=init_device_mesh("cpu", (accelerator.num_processes,)))
    parts = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    n_own, n_all = (sum(counts) for counts in zip(*((p.to_local().numel(), p.numel()) for p in parts), strict=True))
    evaluation = plumbline.Evaluation(
        benchmark="shapes", models="shapes", metrics=brightness, limit=9, batch=4, folder=sys.argv[1]
    )
    evaluation.step(make_pipeline(model), step=0)
    model.reshard()  # otherwise the optimizer, which is created next, would change the gathered weights
    train(model, 10)
    exec(read_example(), {**globals(), "model": model, "evaluation": evaluation})
    failure = fail_on_one_rank(evaluation, rank)
    Path(sys.argv[2].format(rank=rank)).write_text(json.dumps({"n_own": n_own, "n_all": n_all, "failure": failure}))


if __name__ == "__main__":
    main()
