"""A network that is trained: its parts, exercises, loss and checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from torch import nn

from plumbline.operators.models.model import ResolvedModel


class Trainee(ABC):
    """A network in single precision, with its tokenizer and its preprocessing."""

    prefixes: ClassVar[Mapping[str, tuple[str, ...]]]
    """How the names of the parameters begin of each part that may be trained; the vision tower never is."""

    def __init__(self, network: Any, likelihood: Any, precisions: Mapping[str, torch.dtype]) -> None:
        """`likelihood` is the same network as production calls it, with its tokenizer and preprocessing; `precisions`
        are those of the checkpoint's parameters, by name.
        """
        self.network = network
        self.likelihood = likelihood
        self.precisions = precisions

    def name_prefixes(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return how the names of the parameters of these parts begin."""
        return tuple(prefix for part in parts for prefix in self.prefixes[part])

    def round(self) -> None:
        """Give every weight the value that its checkpoint can hold."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(parameter.to(self.precisions[name]))

    @abstractmethod
    def caption(self, image: int, pixels: Any, caption: str, rng: Random) -> Any:
        """Return stage 1's exercise on the image with this number in a batch; raise HopelessRow if there is none."""

    @abstractmethod
    def ask(self, image: int, pixels: Any, question: str, answer: str) -> Any:
        """Return stage 2's exercise: a question as inference asks it; raise HopelessRow if it cannot be asked."""

    @abstractmethod
    def batch(self, pixels: Sequence[Any], exercises: Sequence[Any]) -> Any:
        """Return one step's input, as tensors."""

    @abstractmethod
    def loss(self, network: Any, batch: Any) -> torch.Tensor:
        """Return the mean cross-entropy over the answers' tokens."""

    @abstractmethod
    def save(self, model: ResolvedModel, folder: Path | None) -> None:
        """Write the checkpoint in the precision of the checkpoint that the training began with.

        All workers of a sharded training call this, for their parts of the weights; only the first has a folder.
        """


def train_only(network: nn.Module, prefixes: Sequence[str]) -> None:
    """Freeze all of a network but the parameters whose names begin so."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(tuple(prefixes)))
