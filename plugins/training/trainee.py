"""Interface of a network that can be trained: its modules, training examples, loss and checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from torch import nn

from plumbline.operators.models.model import ResolvedModel


class Trainee(ABC):
    """A network to train in single precision, with its tokenizer and preprocessing."""

    prefixes: ClassVar[Mapping[str, tuple[str, ...]]]
    """Prefixes of parameter names, for each part that can be trained. The vision tower is not among the parts."""

    def __init__(self, network: Any, likelihood: Any, precisions: Mapping[str, torch.dtype]) -> None:
        """Wrap a network for training.

        Args:
            network: The network to train, in single precision.
            likelihood: The same network in the form that inference uses, with its tokenizer and preprocessing.
            precisions: Precision of each parameter in the checkpoint, by name.
        """
        self.network = network
        self.likelihood = likelihood
        self.precisions = precisions

    def find_name_prefixes(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return the prefixes of the names of all parameters in these parts of the network."""
        return tuple(prefix for part in parts for prefix in self.prefixes[part])

    def round_weights(self) -> None:
        """Round each weight to the precision that it has in the checkpoint."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(parameter.to(self.precisions[name]))

    @abstractmethod
    def make_caption_exercise(self, image: int, pixels: Any, caption: str, rng: Random) -> Any:
        """Return a stage 1 exercise for the image with this index; raise UnprocessableRowError if it is unusable."""

    @abstractmethod
    def make_question_exercise(self, image: int, pixels: Any, question: str, answer: str) -> Any:
        """Return a stage 2 exercise: a question phrased as at inference. Raise UnprocessableRowError if unusable."""

    @abstractmethod
    def make_batch(self, pixels: Sequence[Any], exercises: Sequence[Any]) -> Any:
        """Return the input of one training step, as tensors."""

    @abstractmethod
    def compute_loss(self, network: Any, batch: Any) -> torch.Tensor:
        """Return the mean cross-entropy over the answers' tokens."""

    @abstractmethod
    def save(self, model: ResolvedModel, folder: Path | None) -> None:
        """Write the checkpoint in the precision of the initial checkpoint.

        If training is sharded, all workers must call this method. Only the first worker passes a folder.
        """


def freeze_all_but(network: nn.Module, prefixes: Sequence[str]) -> None:
    """Freeze all parameters except those whose names start with these prefixes."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(tuple(prefixes)))
