"""SigLIP: images and texts as points, by towers that were trained pair by pair (Zhai et al. 2023)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operators.models.calls import PixelRule, TextFeatures
from operators.models.dual_encoder import DualEncoder
from operators.models.encoders import in_batches
from operators.models.family import TOKENIZER, Family, Files

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from operators.models.checkpoints import ResolvedModel


class SiglipSimilarity(DualEncoder):
    """The `similarity` call served by a SigLIP checkpoint."""

    def __init__(self, model: Any, tokenizer: Any, processor: Any, *, image_batch: int, pair_batch: int) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.processor = processor
        self.image_batch = image_batch
        self.pair_batch = pair_batch
        self.context = int(model.config.text_config.max_position_embeddings)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image stretched to a square and normalised, (3, height, width); there is no other rule."""
        pixels: torch.Tensor = self.processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Pixels, each (3, height, width), as unit-length embeddings, each (width,), float32, on the CPU."""
        return in_batches(self._encode_images, pixels, [0] * len(pixels), size=self.image_batch)

    def _encode_images(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        import torch

        batch = torch.stack(list(pixels)).to(self.model.device, self.model.dtype)
        return _unit(self.model.get_image_features(pixel_values=batch).pooler_output)

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        lengths = [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []
        rows = in_batches(self._encode_texts, texts, lengths, size=self.pair_batch)
        features = torch.stack(rows) if rows else torch.empty(0, int(self.model.config.text_config.hidden_size))
        return TextFeatures(features, [length > self.context for length in lengths])

    def _encode_texts(self, texts: Sequence[str]) -> "list[torch.Tensor]":
        inputs = self.tokenizer(  # trained on texts of one length, padding and all
            list(texts), padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        )
        return _unit(self.model.get_text_features(inputs.input_ids.to(self.model.device)).pooler_output)


def _unit(features: "torch.Tensor") -> "list[torch.Tensor]":
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())


def _load(model: "ResolvedModel") -> SiglipSimilarity:
    from transformers import SiglipModel

    from operators.models.processing import load_image_processor, load_pretrained, load_tokenizer

    return SiglipSimilarity(
        load_pretrained(SiglipModel, model),
        load_tokenizer(model.folder("tokenizer")),
        load_image_processor(model.folder("checkpoint")),
        image_batch=model.config.image_batch,
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    loads={"similarity": _load, "embedding": _load},
    form="'siglip'",
    suits=lambda fields: fields["model_type"] == "siglip",
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), "download the checkpoint again")),
)
