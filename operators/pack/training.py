"""What all trainings share: a stage's size and pace, and the loop of optimiser steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import torch
from torch import nn

from operators.pack.scenes import MOST_ENTITIES

Report = Callable[[str], None]
Network = TypeVar("Network", bound=nn.Module)
Batch = TypeVar("Batch")
REPORT_EVERY = 100
FEWEST_ENTITIES = 2
GROWING_SHARE = 0.3
WARM_UP = 0.03
FINAL_SHARE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One training stage's size and pace."""

    steps: int
    """Optimiser steps."""
    peak: float
    """Highest learning rate, after warm-up and before cosine decay."""
    size: int
    """Images in a batch; of a language model, texts."""
    each: int = 1
    """Exercises on every image."""

    def rate(self, step: int) -> float:
        """The learning rate: a linear warm-up over 3% of the steps, then a cosine to a twentieth of the peak."""
        warm = max(1, round(WARM_UP * self.steps))
        if step < warm:
            return self.peak * (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        return self.peak * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * progress)) / 2)

    def most(self, step: int) -> int:
        """The most entities a scene has at this step: a curriculum from two to all, grown at 30% of the steps."""
        progress = min(1.0, step / max(1.0, GROWING_SHARE * self.steps))
        return round(FEWEST_ENTITIES + progress * (MOST_ENTITIES - FEWEST_ENTITIES))


def train(
    name: str,
    stage: Stage,
    model: Network,
    loss: Callable[[Network, Batch], torch.Tensor],
    batch_of: Callable[[int], Batch],
    report: Report,
) -> None:
    """Takes the stage's steps with AdamW on all that is not frozen; `batch_of` makes the batch of a step."""
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=stage.peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    began = monotonic()
    losses: list[float] = []
    for step in range(stage.steps):
        optimiser.param_groups[0]["lr"] = stage.rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(model, batch_of(step))
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(value.item())
        if (step + 1) % REPORT_EVERY == 0:
            mean = sum(losses[-REPORT_EVERY:]) / REPORT_EVERY
            report(f"{name}: step {step + 1} of {stage.steps}, loss {mean:.4f}, {monotonic() - began:.0f} s")
