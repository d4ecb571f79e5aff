"""CLIP: images and texts as points, whose cosine is a score."""

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
    from operators.models.processing import PixelTransform

CLIP_IMAGES = ("preprocessor_config.json",)
DOWNLOAD = "download the CLIP checkpoint again"


class ClipSimilarity(DualEncoder):
    """The `similarity` call served by a CLIP checkpoint."""

    def __init__(self, model: Any, tokenizer: Any, transform: "PixelTransform", *, pair_batch: int) -> None:
        from operators.models.processing import ReleasedTransform

        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.transform = transform
        self.released = ReleasedTransform(transform.processor)
        self.pair_batch = pair_batch
        self.context = int(model.config.text_config.max_position_embeddings)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image resized, centre-cropped and normalised, (3, height, width)."""
        return self.released(image) if rule == "released" else self.transform(image)

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Pixels, each (3, height, width), as unit-length embeddings, each (width,), float32, on the CPU."""
        return in_batches(self._encode_images, pixels, [0] * len(pixels), size=max(len(pixels), 1))

    def _encode_images(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        import torch

        batch = torch.stack(list(pixels)).to(device=self.model.device, dtype=self.model.dtype, non_blocking=True)
        return _unit(self.model.get_image_features(pixel_values=batch).pooler_output)

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        lengths = [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []
        rows = in_batches(self._encode_texts, texts, [0] * len(texts), size=self.pair_batch)
        features = torch.stack(rows) if rows else torch.empty(0, int(self.model.config.projection_dim))
        return TextFeatures(features, [length > self.context for length in lengths])

    def _encode_texts(self, texts: Sequence[str]) -> "list[torch.Tensor]":
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        features = self.model.get_text_features(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
        return _unit(features.pooler_output)


def _unit(features: "torch.Tensor") -> "list[torch.Tensor]":
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())


def _load(model: "ResolvedModel") -> ClipSimilarity:
    from transformers import CLIPModel

    from operators.models.processing import load_pixel_transform, load_pretrained, load_tokenizer

    return ClipSimilarity(
        load_pretrained(CLIPModel, model),
        load_tokenizer(model.folder("tokenizer")),
        load_pixel_transform(model.folder("checkpoint"), pad_to_square=False),
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    loads={"similarity": _load, "embedding": _load},
    form="'clip'",
    suits=lambda fields: fields["model_type"] == "clip",
    files=(TOKENIZER, Files("checkpoint", CLIP_IMAGES, DOWNLOAD)),
    engine_in_keys=False,
)
