"""What dual encoders share: towers that make points of images and of texts, and what the cosine of two points says."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.base.batches import BatchSize, in_batches
from plumbline.operators.models.calls import Compared, Compares, Measure, Pair, PixelRule, TextFeatures
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

REMEMBERED_TEXTS = 20_000
COMPARES: tuple[Compares, ...] = ("prompt", "caption", "source", "change")
"""What a dual encoder with one embedding of an image compares."""


class _Text(NamedTuple):
    """An embedded text: unit length (width,), and whether it was cut."""

    feature: "torch.Tensor"
    truncated: bool


class TextEncoder(ABC):
    """The `embedding` call by a network that makes a point of a text."""

    context: int | None
    """Tokens of a text, special ones included; what is beyond is cut. None for any length."""
    pair_batch: BatchSize

    @abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, cut or not."""

    @abstractmethod
    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        """Embeddings (n, width) of texts that are read together."""

    def cleaned(self, text: str) -> str:
        """The text as it is tokenized."""
        return text

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        texts = [self.cleaned(text) for text in texts]
        lengths = self.lengths(texts)
        rows = in_batches(lambda batch: unit(self.text_points(batch)), texts, lengths, size=self.pair_batch)
        truncated = [self.context is not None and length > self.context for length in lengths]
        return TextFeatures(torch.stack(rows) if rows else torch.empty(0, 0), truncated)


class DualEncoder(ABC):
    """The `compare` step of the `similarity` call, by a model that embeds images and texts apart."""

    scale = 1.0
    bias = 0.0
    """A cosine times `scale`, plus `bias`, is the model's logit that image and text belong together."""

    def __init__(self) -> None:
        self.embedded: dict[str, _Text] = {}

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings; those beyond the context are cut and reported."""

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """The cosine of each pair, or what the model makes of it; each text is embedded once.

        An image is one unit-length embedding (width,), or several (n, width), of which the nearest to the text counts.
        """
        self._remember([text for pair in pairs for text in (pair.text, pair.source_text) if text])
        return [self._compared(features, pair, measure) for pair in pairs]

    def _compared(self, features: "Sequence[torch.Tensor]", pair: Pair, measure: Measure) -> Compared:
        """A change that is none has no direction, and the cosine 0 with any other."""
        from torch.nn.functional import cosine_similarity

        texts = [self.embedded[text] for text in (pair.text, pair.source_text) if text]
        image, truncated = features[pair.image], any(text.truncated for text in texts)
        if pair.source is None:
            return Compared(self._measured(float((image @ texts[0].feature).max()), measure), truncated)
        source = features[pair.source]
        if not texts:
            return Compared(float(image @ source), truncated)
        change = cosine_similarity(image - source, texts[0].feature - texts[1].feature, dim=0)
        return Compared(float(change), truncated)

    def _measured(self, cosine: float, measure: Measure) -> float:
        if measure == "cosine":
            return cosine
        logit = self.scale * cosine + self.bias
        return logit if measure == "logit" else 1 / (1 + math.exp(-logit))

    def _remember(self, texts: Sequence[str]) -> None:
        if len(self.embedded) > REMEMBERED_TEXTS:
            self.embedded.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self.embedded]
        encoded = self.encode_texts(new)
        self.embedded |= dict(zip(new, map(_Text, encoded.features, encoded.truncated), strict=True))


class Towers(LoadedImageModel, TextEncoder, DualEncoder):
    """A network of transformers that has `get_image_features` and `get_text_features`."""

    context: int
    padded = False
    """Whether it was trained on texts of one length, their padding being tokens as any other: its `context`."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)
        self.context = int(self.model.config.text_config.max_position_embeddings)
        self.scale = self.learnt_scale()

    def learnt_scale(self) -> float:
        """What a cosine is multiplied with."""
        return math.exp(self.model.logit_scale.item())

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """The image as its checkpoint's processor makes it, (3, height, width); there is no other rule."""
        return super().preprocess(image)

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Preprocessed images as unit-length embeddings, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return unit(self.model.get_image_features(**self.image_inputs(pixels)).pooler_output)

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        """What the image tower takes."""
        return {"pixel_values": self.batch(pixels)}

    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        padding = "max_length" if self.padded else True
        inputs = self.tokens(texts, context=self.context, padding=padding, return_attention_mask=not self.padded)
        mask = {} if self.padded else {"attention_mask": inputs.attention_mask}
        points: torch.Tensor = self.model.get_text_features(input_ids=inputs.input_ids, **mask).pooler_output
        return points


def unit(features: "torch.Tensor") -> "list[torch.Tensor]":
    """Rows of features at unit length, float32, on the CPU."""
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())
