"""CLIP: images and texts as points, whose cosine is a score."""

from typing import TYPE_CHECKING

from operators.models.family import TOKENIZER, Family, Files

if TYPE_CHECKING:
    from operators.models.checkpoints import ResolvedModel
    from operators.models.clip import ClipSimilarity

CLIP_IMAGES = ("preprocessor_config.json",)
DOWNLOAD = "download the CLIP checkpoint again"


def _load(model: "ResolvedModel") -> "ClipSimilarity":
    from operators.models.clip import load_clip
    from operators.models.processing import torch_arguments

    return load_clip(model.folder("checkpoint"), **torch_arguments(model))


FAMILY = Family(
    name="clip",
    loads={"similarity": _load, "embedding": _load},
    form="'clip'",
    suits=lambda fields: fields["model_type"] == "clip",
    files=(TOKENIZER, Files("checkpoint", CLIP_IMAGES, DOWNLOAD)),
    engine_in_keys=False,
)
