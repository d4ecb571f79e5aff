"""The optimiser loop that all training runs share."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Generic, TypeVar

import torch
from torch import nn

from plumbline.plugins.training.sharding import get_local_part, select_unaveraged_gradients

Report = Callable[[str], None]
Network = TypeVar("Network", bound=nn.Module)
Batch = TypeVar("Batch")
AverageFunction = Callable[[Sequence[torch.Tensor]], None]
"""Function that replaces each tensor with its mean over all workers."""
STEPS_PER_REPORT = 100
MAX_GRADIENT_NORM = 1.0
"""Maximum norm of the gradients; larger gradients are scaled down."""
STATE_PREFIXES = {"weights": "weights.", "optimiser": "optimiser."}
"""Prefixes of tensor names in a saved state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStage:
    """Length, batch size and learning rate of a training stage."""

    steps: int
    """Number of optimiser steps."""
    peak: float
    """Peak learning rate, after warm-up and before cosine decay."""
    size: int
    """Number of images per batch; for a language model, number of texts."""
    each: int = 1
    """Number of exercises (texts with an answer to learn) per image."""
    warm_up: float = 0.03
    """Fraction of the steps during which the learning rate rises to its peak."""
    final: float = 0.05
    """Final learning rate as a fraction of the peak."""
    decay: float = 0.01
    """Weight decay of AdamW."""
    momentum: tuple[float, float] = (0.9, 0.98)
    """Betas of AdamW."""
    quick: Mapping[str, float] = field(default_factory=dict)
    """Learning rate factors for parameters whose names contain these strings."""

    def compute_learning_rate(self, step: int) -> float:
        """Return the learning rate at a step: a linear warm-up followed by a cosine decay."""
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return self.peak * (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        return self.peak * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)

    def find_rate_factor(self, name: str) -> float:
        """Return the learning rate factor for a parameter."""
        return math.prod(multiple for words, multiple in self.quick.items() if words in name)


def skip_averaging(tensors: Sequence[torch.Tensor]) -> None:
    """Leave the tensors unchanged, because there is only one worker."""


class StageTrainer(Generic[Network]):
    """Trainer for one stage of a network. AdamW optimises all parameters that are not frozen."""

    def __init__(self, model: Network, stage: TrainingStage, *, seed: str = "") -> None:
        """Prepare the optimiser; `seed` determines the dropout of each step."""
        self.model = model.train()
        self.stage = stage
        self.seed = seed
        self.step = 0
        self.trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.trained.items():
            groups.setdefault(stage.find_rate_factor(name), []).append(parameter)
        self.optimiser = torch.optim.AdamW(
            [{"params": parameters, "multiple": multiple} for multiple, parameters in groups.items()],
            lr=stage.peak,
            betas=stage.momentum,
            weight_decay=stage.decay,
            fused=True,
        )

    def take_step(
        self, loss: Callable[[Network, Batch], torch.Tensor], batch: Batch, average: AverageFunction
    ) -> float:
        """Take a step and return the loss. On GPUs, the loss is computed with autocast to bfloat16."""
        torch.manual_seed(Random(f"{self.seed}/{self.step}").getrandbits(63))
        parameters = list(self.trained.values())
        for group in self.optimiser.param_groups:
            group["lr"] = self.stage.compute_learning_rate(self.step) * group["multiple"]
        kind = parameters[0].device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind != "cpu"):
            value = loss(self.model, batch)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        value = value.detach()
        average([value, *select_unaveraged_gradients([parameter.grad for parameter in parameters])])
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        self.optimiser.step()
        self.step += 1
        return value.item()

    def collect_state(self) -> dict[str, torch.Tensor]:
        """Return the weights and AdamW's moments by name, or only this worker's part if the weights are sharded."""
        tensors = {
            STATE_PREFIXES["weights"] + name: get_local_part(parameter.detach())
            for name, parameter in self.trained.items()
        }
        for name, parameter in self.trained.items():
            for moment, tensor in self.optimiser.state[parameter].items():
                tensors[f"{STATE_PREFIXES['optimiser']}{moment}.{name}"] = get_local_part(tensor)
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        """Continue from a state that was saved after `step` steps; raise KeyError if the state lacks a weight."""
        with torch.no_grad():
            for name, parameter in self.trained.items():
                get_local_part(parameter).copy_(tensors[STATE_PREFIXES["weights"] + name])
        for stored, tensor in tensors.items():
            if stored.startswith(STATE_PREFIXES["optimiser"]):
                moment, _, name = stored.removeprefix(STATE_PREFIXES["optimiser"]).partition(".")
                parameter = self.trained[name]
                if moment == "step":  # a fused AdamW counts steps on the parameter's device
                    self.optimiser.state[parameter][moment] = tensor.to(parameter.device, copy=True)
                else:
                    self.optimiser.state[parameter][moment] = restored = torch.zeros_like(parameter.detach())
                    get_local_part(restored).copy_(tensor)
        self.step = step


def train(
    name: str,
    trainer: StageTrainer[Network],
    loss: Callable[[Network, Batch], torch.Tensor],
    read_batch: Callable[[int], Batch],
    report: Report,
    *,
    average: AverageFunction = skip_averaging,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Take the remaining steps of the stage, and report the mean loss every STEPS_PER_REPORT steps and at the end.

    Each mean covers the steps since the last report. `read_batch` returns the batch for a step, and `after` is called
    after each step.
    """
    began, losses = monotonic(), []
    while trainer.step < trainer.stage.steps:
        losses.append(trainer.take_step(loss, read_batch(trainer.step), average))
        if trainer.step % STEPS_PER_REPORT == 0 or trainer.step == trainer.stage.steps:
            mean, seconds = sum(losses) / len(losses), monotonic() - began
            report(f"{name}: step {trainer.step} of {trainer.stage.steps}, loss {mean:.4f}, {seconds:.0f} s")
            losses.clear()
        after()
