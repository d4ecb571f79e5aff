"""The model calls that metrics are made of, as protocols a backend implements and an operator relies on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from PIL import Image

if TYPE_CHECKING:
    import torch


class Question(NamedTuple):
    """One question about one image, with the candidate answers whose likelihood is wanted."""

    image: int
    """Index into the images of the call."""
    text: str
    choices: tuple[str, ...]


class LikelihoodModel(Protocol):
    """`likelihood(images, questions with candidate answers) -> log-probability of each answer`."""

    def preprocess(self, image: Image.Image) -> "torch.Tensor":
        """One RGB image as the vision tower's input, (3, height, width), on the CPU."""

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "Sequence[torch.Tensor]":
        """Images (3, height, width) as the features that every question on them shares, each (patches, width)."""

    def likelihood(self, features: "Sequence[torch.Tensor]", questions: Sequence[Question]) -> list[list[list[float]]]:
        """Natural-log probability of every token of every choice of every question, EOS included."""


class TextFeatures(NamedTuple):
    """Unit-length text embeddings and which texts did not fit the model's context."""

    features: "torch.Tensor"
    """(n, width), float32."""
    truncated: list[bool]


class SimilarityModel(Protocol):
    """`similarity(images, texts) -> cosine`, in its two halves so that each image and text is encoded once."""

    def preprocess(self, image: Image.Image) -> "torch.Tensor":
        """One RGB image as the vision tower's input, (3, height, width), on the CPU."""

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "Sequence[torch.Tensor]":
        """Images (3, height, width) as unit-length embeddings, each (width,), float32."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings; those beyond the context are cut and reported."""
