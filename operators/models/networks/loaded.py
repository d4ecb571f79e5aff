"""Base classes for models built on transformers: a checkpoint's network, tokenizer and image processor.

Nothing here imports torch before a model is loaded, so that families can derive their models from these classes.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from PIL import Image

from plumbline.operators.base.batches import BatchSize
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.model import ResolvedModel

if TYPE_CHECKING:
    import torch


Item = TypeVar("Item")
Result = TypeVar("Result")
MIN_UNLIMITED_LENGTH = 100_000
"""A tokenizer's limit of at least this many tokens counts as no limit."""
TYPES_WITH_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""Model types that count positions from the padding token's id plus one."""


def call_by_group(
    call: Callable[[list[Item]], Sequence[Result]], items: Sequence[Item], *, key: Callable[[Item], Hashable]
) -> list[Result]:
    """Return a result for each item, in order; `call` gets all items with the same key at once."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    results: dict[int, Result] = {}
    for indices in groups.values():
        results.update(zip(indices, call([items[index] for index in indices]), strict=True))
    return [results[index] for index in range(len(items))]


class SizedTensor(NamedTuple):
    """The pixels (3, height, width) or the features of an image, with the size of the original image."""

    tensor: "torch.Tensor"
    width: int
    height: int


class LoadedModel:
    """Base class for models built on transformers: a checkpoint's network with its tokenizer."""

    architecture: ClassVar[str]
    """The network's class in transformers, or `module:class` for any other class."""
    side_by_side = False

    def __init__(
        self, model: Any, tokenizer: Any, processor: Any = None, *, image_batch: int = 64, pair_batch: int = 64
    ) -> None:
        """Set the batch sizes: at most `image_batch` images, and `pair_batch` pairs or texts, are processed at once."""
        self.model = model
        self.tokenizer = tokenizer
        self.processor = processor
        self.image_batch = BatchSize(image_batch)
        self.pair_batch = BatchSize(pair_batch)
        self.usage = Usage()

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        """Return the model with its checkpoint's weights, or with `network`, which must be on the right device.

        Raises ModelError if a file is damaged or does not match the checkpoint's other files.
        """
        network = cls.load_network(model) if network is None else network
        tokenizer = cls.load_tokenizer(model)
        batches = {"image_batch": model.config.image_batch, "pair_batch": model.config.pair_batch}
        return cls(network, tokenizer, cls.load_processor(model, tokenizer), **batches)

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.processing import load_pretrained

        return load_pretrained(cls.architecture, model)

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.processing import load_tokenizer

        return load_tokenizer(model.folder("tokenizer"))

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        """Return the processor that converts images to the network's input; None if the network takes no images."""
        return None

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens in each text before truncation."""
        return [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []

    def tokenize(self, *texts: Sequence[str], context: int | None, **options: Any) -> Any:
        """Return texts, or pairs of texts, as padded tokens on the network's device, truncated to the context."""
        given = [list(each) for each in texts]
        defaults = {"truncation": context is not None, "max_length": context, "padding": True, "return_tensors": "pt"}
        return self.tokenizer(*given, **defaults | options).to(self.model.device)

    def find_context_limit(self) -> int | None:
        """Return the maximum number of tokens, including special ones; None if model and tokenizer set no limit."""
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and config.model_type in TYPES_WITH_OFFSET_POSITIONS:
            positions -= config.pad_token_id + 1
        limits = (positions, self.tokenizer.model_max_length)
        return min(
            (int(limit) for limit in limits if limit is not None and 0 < limit < MIN_UNLIMITED_LENGTH), default=None
        )


class LoadedImageModel(LoadedModel):
    """Base class for models that take images, built on transformers, with the checkpoint's image processor."""

    def __init__(self, model: Any, tokenizer: Any, processor: Any, **batches: int) -> None:
        from plumbline.operators.models.pixels import make_pixel_input

        super().__init__(model, tokenizer, processor, **batches)
        self.pixels = make_pixel_input(processor, device=model.device, dtype=model.dtype)

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import load_image_processor

        return load_image_processor(model.folder("checkpoint"))

    def preprocess(self, image: Image.Image) -> Any:
        """Return the image prepared by the checkpoint's processor, (3, height, width), as bytes if possible."""
        return self.pixels.pin(self.processor(images=image, return_tensors="pt")["pixel_values"][0])

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        return pixels

    def batch(self, pixels: "Sequence[torch.Tensor]") -> "torch.Tensor":
        """Return pixels of the same shape as one tensor, on the network's device and in its precision."""
        return self.pixels([each[None] for each in pixels])
