"""CLIP: images and texts as points, whose cosine is a score; PickScore is one that was trained on people's choices."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, CosineVqa
from plumbline.operators.models.networks.dual_encoder import Reading, Towers

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import PixelTransform


class ClipSimilarity(Towers):
    """The `similarity` call served by a CLIP checkpoint."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        transform: "PixelTransform",
        *,
        pair_batch: int,
        padded: bool = False,
        cleaned: Callable[[str], str] = str,
    ) -> None:
        from plumbline.operators.models.processing import PaddedTransform, ReleasedTransform

        super().__init__(
            model,
            tokenizer,
            transform,
            width=int(model.config.projection_dim),
            reading=Reading(int(model.config.text_config.max_position_embeddings), padded, cleaned),
            pair_batch=pair_batch,
            scale=math.exp(model.logit_scale.item()),
        )
        self.released = ReleasedTransform(transform.processor)
        self.padded = PaddedTransform(transform.processor)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image as the rule has it, (3, height, width)."""
        rules = {"processor": self.transform, "released": self.released, "padded": self.padded}
        pixels: torch.Tensor = rules[rule](image)
        return pixels


def _load(model: "ResolvedModel") -> ClipSimilarity:
    from transformers import CLIPModel

    from plumbline.operators.models.processing import load_pixel_transform, load_pretrained, load_tokenizer

    return ClipSimilarity(
        load_pretrained(CLIPModel, model),
        load_tokenizer(model.folder("tokenizer")),
        load_pixel_transform(model.folder("checkpoint"), pad_to_square=False),
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load, "embedding": _load, "likelihood": lambda model: CosineVqa(_load(model))},
    form="'clip'",
    suits=lambda fields: fields["model_type"] == "clip",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit"),
    pixels=get_args(PixelRule),
    options_in_key=lambda config, profile: {},
)
