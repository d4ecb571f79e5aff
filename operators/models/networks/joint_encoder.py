"""Models that read a text together with an image: the image is encoded once, each pair is read separately."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule
from plumbline.operators.models.networks.dual_encoder import DualEncoder, TextEncoder, unit
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel


class JointEncoder(LoadedImageModel, ABC):
    """The `similarity` call by a network whose text half attends to the states of its `vision_model`."""

    context: int
    """Maximum number of tokens of a text, which is cut there."""

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"  # the first token is what is read
        return tokenizer

    @abstractmethod
    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the similarity (n,) of texts (n, length) and images (n, tokens, width); the mask is 0 for padding."""

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """Prepare the image as in the model's training, (3, height, width); `rule` is ignored."""
        return super().preprocess(image)

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Return the vision tower's states of preprocessed images, each (tokens, width), on the model's device."""
        import torch

        with torch.inference_mode():
            return list(self.model.vision_model(pixel_values=self.batch(pixels)).last_hidden_state)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """Return the similarity of each pair, by reading the text together with the image."""
        lengths = self.lengths([pair.text for pair in pairs])

        def read(batch: Sequence[Pair]) -> list[float]:
            import torch

            states = torch.stack([features[pair.image] for pair in batch])
            words = self.tokens([pair.text for pair in batch], context=self.context)
            numbers: list[float] = self.read(states, words.input_ids, words.attention_mask).float().tolist()
            return numbers

        numbers = call_in_batches(read, pairs, lengths, size=self.pair_batch)
        return [Compared(number, length > self.context) for number, length in zip(numbers, lengths, strict=True)]


class MatchingEncoder(JointEncoder, TextEncoder, DualEncoder):
    """A JointEncoder that also embeds images and texts: `match` by reading, `cosine` by embedding."""

    context: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)

    @abstractmethod
    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return embeddings of images (n, tokens, width): one each, (n, width), or several, (n, k, width)."""

    @abstractmethod
    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return embeddings (n, width) of texts as tokens, read without an image."""

    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        words = self.tokens(texts, context=self.context)
        return self.word_points(words.input_ids, words.attention_mask)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """Return the similarity of each pair, by `match` or `cosine`."""
        if measure == "match":
            return JointEncoder.compare(self, features, pairs)
        return DualEncoder.compare(self, self._points(features, pairs), pairs)

    def _points(self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair]) -> "Any":
        """Return the embeddings of the images in these pairs, by image."""
        import torch

        images = list(dict.fromkeys(pair.image for pair in pairs))
        points = call_in_batches(
            lambda batch: unit(self.image_points(torch.stack([features[image] for image in batch]))),
            images,
            size=self.pair_batch,
        )
        return dict(zip(images, points, strict=True))
