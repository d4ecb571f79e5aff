"""What models share that read a text while they look at an image: the image is encoded once, each pair is read anew."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.batches import BatchSize, in_batches
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule, TextFeatures
from plumbline.operators.models.networks.dual_encoder import DualEncoder, unit

if TYPE_CHECKING:
    import torch
    from PIL import Image


class JointEncoder(ABC):
    """The `similarity` call by a network that has a `vision_model`, whose states its text half attends to."""

    def __init__(self, model: Any, tokenizer: Any, transform: Any, *, context: int, pair_batch: int) -> None:
        """`transform` makes an image the network's input; a text beyond `context` tokens is cut."""
        self.model = model
        self.tokenizer = tokenizer
        self.tokenizer.padding_side = "right"  # the first token is what is read
        self.transform = transform
        self.context = context
        self.pair_batch = BatchSize(pair_batch)

    @abstractmethod
    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """How well texts (n, length), `mask` being 1 at all but padding, fit images (n, tokens, width): (n,)."""

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image as the model was trained on it, (3, height, width); there is no other rule."""
        pixels: torch.Tensor = self.transform(image)
        return pixels

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Preprocessed images as the vision tower's states, each (tokens, width), where the model is."""
        import torch

        batch = torch.stack(list(pixels)).to(device=self.model.device, dtype=self.model.dtype, non_blocking=True)
        with torch.inference_mode():
            return list(self.model.vision_model(pixel_values=batch).last_hidden_state)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """How well each pair fits, by reading the text in the image's sight."""
        lengths = self.lengths([pair.text for pair in pairs])

        def read(batch: Sequence[Pair]) -> list[float]:
            import torch

            states = torch.stack([features[pair.image] for pair in batch])
            numbers: list[float] = self.read(states, *self.tokens([pair.text for pair in batch])).float().tolist()
            return numbers

        numbers = in_batches(read, pairs, lengths, size=self.pair_batch)
        return [Compared(number, length > self.context) for number, length in zip(numbers, lengths, strict=True)]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, cut or not."""
        return [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []

    def tokens(self, texts: Sequence[str]) -> "tuple[torch.Tensor, torch.Tensor]":
        """Texts as tokens (n, length), cut and padded, and 1 at those that are no padding."""
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        return inputs.input_ids, inputs.attention_mask


class MatchingEncoder(JointEncoder, DualEncoder):
    """One that has embeddings of images and texts besides: `match` by reading, `cosine` by embedding."""

    def __init__(self, model: Any, tokenizer: Any, transform: Any, *, context: int, pair_batch: int) -> None:
        JointEncoder.__init__(self, model, tokenizer, transform, context=context, pair_batch=pair_batch)
        DualEncoder.__init__(self)

    @abstractmethod
    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Embeddings of images (n, tokens, width): one each, (n, width), or several, (n, k, width)."""

    @abstractmethod
    def text_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Embeddings (n, width) of texts, read without an image."""

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
            [0] * len(images),
            size=self.pair_batch,
        )
        return dict(zip(images, points, strict=True))

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        lengths = self.lengths(texts)
        rows = in_batches(
            lambda batch: unit(self.text_points(*self.tokens(batch))), texts, lengths, size=self.pair_batch
        )
        features = torch.stack(rows) if rows else torch.empty(0, 0)
        return TextFeatures(features, [length > self.context for length in lengths])
