"""What dual encoders share: towers that make points of images and of texts, and what the cosine of two points says."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.batches import BatchSize, in_batches
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule, TextFeatures

if TYPE_CHECKING:
    import torch
    from PIL import Image

REMEMBERED_TEXTS = 20_000


class _Text(NamedTuple):
    """An embedded text: unit length (width,), and whether it was cut."""

    feature: "torch.Tensor"
    truncated: bool


class DualEncoder(ABC):
    """The `compare` step of the `similarity` call, by a model that embeds images and texts apart."""

    def __init__(self, *, scale: float = 1.0, bias: float = 0.0) -> None:
        """A cosine times `scale`, plus `bias`, is the model's logit that image and text belong together."""
        self.scale = scale
        self.bias = bias
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
        self._remember([pair.text for pair in pairs])
        texts = [self.embedded[pair.text] for pair in pairs]
        return [
            Compared(self._measured(float((features[pair.image] @ text.feature).max()), measure), text.truncated)
            for pair, text in zip(pairs, texts, strict=True)
        ]

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


class Reading(NamedTuple):
    """How a text tower reads."""

    context: int
    """In tokens, special ones included; what is beyond is cut."""
    padded: bool = False
    """Whether it was trained on texts of one length, their padding being tokens as any other: its `context`."""
    cleaned: Callable[[str], str] = str
    """What is done to a text before it is tokenized."""


class Towers(DualEncoder):
    """A network of transformers that has `get_image_features` and `get_text_features`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        transform: Any,
        *,
        width: int,
        reading: Reading,
        pair_batch: int,
        **logit: float,
    ) -> None:
        """`transform` makes an image the network's input, `width` is that of the embeddings, `logit` scale and bias."""
        super().__init__(**logit)
        self.model = model
        self.tokenizer = tokenizer
        self.transform = transform
        self.width = width
        self.reading = reading
        self.pair_batch = BatchSize(pair_batch)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """The image as its checkpoint's processor makes it, (3, height, width); there is no other rule."""
        return self.transform(image)

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Preprocessed images as unit-length embeddings, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return unit(self.model.get_image_features(**self.image_inputs(pixels)).pooler_output)

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        """What the image tower takes."""
        import torch

        batch = torch.stack(list(pixels)).to(device=self.model.device, dtype=self.model.dtype, non_blocking=True)
        return {"pixel_values": batch}

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        texts = [self.reading.cleaned(text) for text in texts]
        lengths = [len(ids) for ids in self.tokenizer(texts).input_ids] if texts else []
        rows = in_batches(self._encode_texts, texts, [0] * len(texts), size=self.pair_batch)
        features = torch.stack(rows) if rows else torch.empty(0, self.width)
        return TextFeatures(features, [length > self.reading.context for length in lengths])

    def _encode_texts(self, texts: Sequence[str]) -> "list[torch.Tensor]":
        context, padded, _ = self.reading
        padding = "max_length" if padded else True
        inputs = self.tokenizer(
            list(texts),
            padding=padding,
            truncation=True,
            max_length=context,
            return_attention_mask=not padded,
            return_tensors="pt",
        ).to(self.model.device)
        mask = {} if padded else {"attention_mask": inputs.attention_mask}
        return unit(self.model.get_text_features(input_ids=inputs.input_ids, **mask).pooler_output)


def unit(features: "torch.Tensor") -> "list[torch.Tensor]":
    """Rows of features at unit length, float32, on the CPU."""
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())
