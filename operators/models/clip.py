"""CLIP-shaped dual encoders through transformers: the `similarity` call."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import normalize
from transformers import CLIPModel

from operators.models.calls import PixelRule, TextFeatures
from operators.models.dual_encoder import DualEncoder
from operators.models.processing import PixelTransform, ReleasedTransform


class ClipSimilarity(DualEncoder):
    """The `similarity` call served by a CLIP checkpoint."""

    def __init__(self, model: CLIPModel, tokenizer: Any, transform: PixelTransform, *, pair_batch: int) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.transform = transform
        self.released = ReleasedTransform(transform.processor)
        self.pair_batch = pair_batch
        self.context = int(model.config.text_config.max_position_embeddings)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        """The image resized, centre-cropped and normalised, (3, height, width)."""
        return self.released(image) if rule == "released" else self.transform(image)

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Pixels, each (3, height, width), as unit-length embeddings, each (width,), float32, on the CPU."""
        batch = torch.stack(list(pixels)).to(device=self.model.device, dtype=self.model.dtype, non_blocking=True)
        features = self.model.get_image_features(pixel_values=batch).pooler_output
        return list(normalize(features.float(), dim=-1).cpu())

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        lengths = [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []
        batches = [texts[first : first + self.pair_batch] for first in range(0, len(texts), self.pair_batch)]
        features = [self._encode_batch(batch) for batch in batches]
        empty = torch.empty(0, int(self.model.config.projection_dim))
        return TextFeatures(torch.cat(features) if features else empty, [length > self.context for length in lengths])

    def _encode_batch(self, texts: Sequence[str]) -> torch.Tensor:
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        features = self.model.get_text_features(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask
        ).pooler_output
        return normalize(features.float(), dim=-1).cpu()
