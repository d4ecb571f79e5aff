"""A tiny diffusers pipeline is trained for a few hundred steps, and the evaluation reports that it improves."""

import io
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import plumbline
from tests.environment import ROOT

SHAPES_FOLDER = ROOT / "assets/shapes"
N_PROMPTS, MAX_WORDS, NOISE, IMAGE_SIDE = 64, 16, 8, 64


class Network(nn.Module):
    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        words = sorted({word for text in texts for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, start=1)}
        self.words = nn.Embedding(len(words) + 1, 32)
        first = [nn.Linear(MAX_WORDS * 32 + NOISE, 512), nn.SiLU(), nn.Linear(512, 1024), nn.SiLU()]
        sizes = [(64, 48), (48, 32), (32, 16)]
        larger = [part for size in sizes for part in (nn.ConvTranspose2d(*size, 4, 2, 1), nn.SiLU())]
        last = [nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()]
        self.layers = nn.Sequential(*first, nn.Unflatten(1, (64, 4, 4)), *larger, *last)

    def forward(self, texts: list[str], noise: torch.Tensor) -> torch.Tensor:
        numbers = [[self.numbers[word] for word in text.split()][:MAX_WORDS] for text in texts]
        padded = torch.tensor([row + [0] * (MAX_WORDS - len(row)) for row in numbers])
        return self.layers(torch.cat([self.words(padded).flatten(1), 0.1 * noise], dim=1))


class TinyPipeline(diffusers.DiffusionPipeline):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.register_modules(network=network)

    def __call__(self, prompt: list[str], generator: list[torch.Generator]) -> Any:
        noise = torch.stack([torch.randn(NOISE, generator=each) for each in generator])
        pixels = ((self.network(prompt, noise) + 1) * 127.5).permute(0, 2, 3, 1).byte().numpy()
        return diffusers.ImagePipelineOutput(images=[Image.fromarray(image) for image in pixels])


def read_examples() -> tuple[list[str], torch.Tensor]:
    prompts = pq.read_table(SHAPES_FOLDER / "prompts.parquet").slice(0, N_PROMPTS).to_pylist()
    images = {row["prompt_id"]: row["image"] for row in pq.read_table(SHAPES_FOLDER / "images/atlas").to_pylist()}
    pixels = [
        np.asarray(Image.open(io.BytesIO(images[row["prompt_id"]])).convert("RGB").resize((IMAGE_SIDE, IMAGE_SIDE)))
        for row in prompts
    ]
    return [row["text"] for row in prompts], torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1


@pytest.mark.slow
def test_the_scores_of_a_pipeline_rise_during_its_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    texts, images = read_examples()
    network = Network(texts)
    pipeline, optimizer = TinyPipeline(network), torch.optim.AdamW(network.parameters(), lr=1e-3)
    evaluation = plumbline.Evaluation(
        benchmark="shapes", metrics=["vqascore", "clipscore"], models="shapes", limit=N_PROMPTS, folder=str(tmp_path)
    )
    results = {}
    for step in range(601):
        if step % 150 == 0:
            results[step] = evaluation.step(pipeline, step=step)
            print(results[step])
        chosen = torch.randint(0, N_PROMPTS, (16,))
        made = network([texts[number] for number in chosen], torch.randn(16, NOISE))
        loss = ((made - images[chosen]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for metric in ("vqascore", "clipscore"):
        assert results[600][metric].previous.verdict == results[600][metric].best.verdict == "better"
        assert results[600][metric].low > results[0][metric].high
