"""What models share that read a text while they look at an image: the image is encoded once, each pair is read anew."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.batches import in_batches
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule
from plumbline.operators.models.networks.dual_encoder import DualEncoder, TextEncoder, unit
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel


class JointEncoder(LoadedImageModel, ABC):
    """The `similarity` call by a network that has a `vision_model`, whose states its text half attends to."""

    context: int
    """Tokens of a text; what is beyond is cut."""

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"  # the first token is what is read
        return tokenizer

    @abstractmethod
    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """How well texts (n, length), `mask` being 1 at all but padding, fit images (n, tokens, width): (n,)."""

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """The image as the model was trained on it, (3, height, width); there is no other rule."""
        return super().preprocess(image)

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Preprocessed images as the vision tower's states, each (tokens, width), where the model is."""
        import torch

        with torch.inference_mode():
            return list(self.model.vision_model(pixel_values=self.batch(pixels)).last_hidden_state)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """How well each pair fits, by reading the text in the image's sight."""
        lengths = self.lengths([pair.text for pair in pairs])

        def read(batch: Sequence[Pair]) -> list[float]:
            import torch

            states = torch.stack([features[pair.image] for pair in batch])
            words = self.tokens([pair.text for pair in batch], context=self.context)
            numbers: list[float] = self.read(states, words.input_ids, words.attention_mask).float().tolist()
            return numbers

        numbers = in_batches(read, pairs, lengths, size=self.pair_batch)
        return [Compared(number, length > self.context) for number, length in zip(numbers, lengths, strict=True)]


class MatchingEncoder(JointEncoder, TextEncoder, DualEncoder):
    """One that has embeddings of images and texts besides: `match` by reading, `cosine` by embedding."""

    context: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)

    @abstractmethod
    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Embeddings of images (n, tokens, width): one each, (n, width), or several, (n, k, width)."""

    @abstractmethod
    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Embeddings (n, width) of texts as tokens, read without an image."""

    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        words = self.tokens(texts, context=self.context)
        return self.word_points(words.input_ids, words.attention_mask)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """How well each pair fits, by `match` or `cosine`."""
        if measure == "match":
            return JointEncoder.compare(self, features, pairs)
        return DualEncoder.compare(self, self._points(features, pairs), pairs)

    def _points(self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair]) -> "Any":
        """The embeddings, by image, of those that are asked about."""
        import torch

        images = list(dict.fromkeys(pair.image for pair in pairs))
        points = in_batches(
            lambda batch: unit(self.image_points(torch.stack([features[image] for image in batch]))),
            images,
            size=self.pair_batch,
        )
        return dict(zip(images, points, strict=True))
