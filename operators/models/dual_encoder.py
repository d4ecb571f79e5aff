"""What dual encoders share: an image fits a text by the cosine of their embeddings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from operators.models.calls import Compared, Pair, TextFeatures

if TYPE_CHECKING:
    import torch

REMEMBERED_TEXTS = 20_000


class _Text(NamedTuple):
    """An embedded text: unit length (width,), and whether it was cut."""

    feature: "torch.Tensor"
    truncated: bool


class DualEncoder(ABC):
    """The `compare` step of the `similarity` call, by a model that embeds images and texts apart."""

    def __init__(self) -> None:
        self.embedded: dict[str, _Text] = {}

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings; those beyond the context are cut and reported."""

    def compare(self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair]) -> list[Compared]:
        """The cosine of each pair, of unit-length image embeddings (width,); each text is embedded once."""
        self._remember([pair.text for pair in pairs])
        texts = [self.embedded[pair.text] for pair in pairs]
        return [
            Compared(float(features[pair.image] @ text.feature), text.truncated)
            for pair, text in zip(pairs, texts, strict=True)
        ]

    def _remember(self, texts: Sequence[str]) -> None:
        if len(self.embedded) > REMEMBERED_TEXTS:
            self.embedded.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self.embedded]
        encoded = self.encode_texts(new)
        self.embedded |= dict(zip(new, map(_Text, encoded.features, encoded.truncated), strict=True))
