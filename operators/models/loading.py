"""From a resolved model to a loaded backend; the one place where a model family meets its class."""

from typing import TYPE_CHECKING

import torch

from operators.errors import ModelError
from operators.models.checkpoints import ResolvedModel
from operators.models.clip import load_clip
from operators.models.clip_flant5 import load_clip_flant5

if TYPE_CHECKING:
    from operators.models.clip import ClipSimilarity
    from operators.models.clip_flant5 import ClipFlanT5Likelihood


def load_likelihood(model: ResolvedModel) -> "ClipFlanT5Likelihood":
    """A backend of the `likelihood` call; raises ModelError where it does not load."""
    if model.family != "clip_flant5":
        raise ModelError(f"model family {model.family!r} does not serve `likelihood`; use clip_flant5")
    parts = {role: part.folder() for role, part in model.parts.items()}
    return load_clip_flant5(
        parts["checkpoint"],
        tower=parts["vision_tower"],
        tokenizer=parts["tokenizer"],
        device=_device(model),
        dtype=getattr(torch, model.dtype),
        pair_batch=model.pair_batch,
    )


def load_similarity(model: ResolvedModel) -> "ClipSimilarity":
    """A backend of the `similarity` call; raises ModelError where it does not load."""
    if model.family != "clip":
        raise ModelError(f"model family {model.family!r} does not serve `similarity`; use clip")
    parts = {role: part.folder() for role, part in model.parts.items()}
    return load_clip(
        parts["checkpoint"],
        tokenizer=parts["tokenizer"],
        device=_device(model),
        dtype=getattr(torch, model.dtype),
        pair_batch=model.pair_batch,
    )


def _device(model: ResolvedModel) -> str:
    if model.on_gpu and not torch.cuda.is_available():
        raise ModelError("the pool has num_gpus > 0 but torch sees no CUDA device; use a CPU pool, or a CUDA torch")
    return "cuda" if model.on_gpu else "cpu"
