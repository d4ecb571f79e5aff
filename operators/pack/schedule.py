"""What all trainings share: a stage's size and pace, and the loop of optimiser steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import torch
from torch import nn

from operators.pack.scenes import MOST_ENTITIES

Report = Callable[[str], None]
REPORT_EVERY = 100
FEWEST_MOST = 2
WARM_UP = 0.03
FINAL_SHARE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One training stage's size and pace."""

    steps: int
    """Optimiser steps."""
    peak: float
    """Highest learning rate, after warm-up and before cosine decay."""
    images: int
    """Images in a batch."""
    each: int = 1
    """Exercises on every image."""
    grow: float = 0.3
    """Share of the stage after which scenes have their full number of entities."""

    def rate(self, step: int) -> float:
        """The learning rate: a linear warm-up over 3% of the steps, then a cosine to a twentieth of the peak."""
        warm = max(1, round(WARM_UP * self.steps))
        if step < warm:
            return self.peak * (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        return self.peak * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * progress)) / 2)

    def most(self, step: int) -> int:
        """The most entities a scene has at this step: a curriculum from two to all."""
        progress = min(1.0, step / max(1.0, self.grow * self.steps))
        return round(FEWEST_MOST + progress * (MOST_ENTITIES - FEWEST_MOST))


def optimise(
    parameters: Sequence[nn.Parameter],
    stage: Stage,
    loss_of: Callable[[int], torch.Tensor],
    report: Report,
    *,
    name: str,
) -> None:
    """Takes the stage's steps with AdamW; `loss_of` makes a batch for the step and returns its loss."""
    optimiser = torch.optim.AdamW(parameters, lr=stage.peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    began = monotonic()
    losses: list[float] = []
    for step in range(stage.steps):
        optimiser.param_groups[0]["lr"] = stage.rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(step)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % REPORT_EVERY == 0:
            mean = sum(losses[-REPORT_EVERY:]) / REPORT_EVERY
            report(f"{name}: step {step + 1} of {stage.steps}, loss {mean:.4f}, {monotonic() - began:.0f} s")
