"""CLIP: images and texts as points, whose cosine is a score."""

from typing import TYPE_CHECKING

from operators.models.family import TOKENIZER, Family, Files

if TYPE_CHECKING:
    from operators.models.checkpoints import ResolvedModel
    from operators.models.clip import ClipSimilarity

CLIP_IMAGES = ("preprocessor_config.json",)
DOWNLOAD = "download the CLIP checkpoint again"


def _load(model: "ResolvedModel") -> "ClipSimilarity":
    from transformers import CLIPModel

    from operators.models.clip import ClipSimilarity
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
