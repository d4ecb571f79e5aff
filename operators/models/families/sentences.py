"""Sentence encoders: texts as points that are near where the texts mean the same."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from operators.errors import ModelError
from operators.models.family import Family
from operators.models.parts import Fields, Part, architecture

if TYPE_CHECKING:
    from operators.models.calls import TextEmbedder
    from operators.models.checkpoints import ModelConfig, ResolvedModel

POOLING_MODES = {"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"}


def _suits(fields: Fields) -> bool:
    whole = fields.get("is_encoder_decoder") or "vision_config" in fields
    return architecture(fields).endswith("Model") and not whole


def _check(config: "ModelConfig", parts: Mapping[str, Part], fields: Fields) -> None:
    """A sentence-transformers folder says how it pools; only the mean is served."""
    part = parts["checkpoint"]
    path = part.file("1_Pooling/config.json")
    if path is None:
        return
    try:
        pooling = json.loads(path.read_text())
        modes = {name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True}
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a pooling config ({error}); download the checkpoint again") from error
    if pooling.get("pooling_mode") != "mean" and modes & POOLING_MODES != {"mean_tokens"}:
        raise ModelError(f"{part.source}: 1_Pooling/config.json is not mean pooling, which alone is served")


def _load(model: "ResolvedModel") -> "TextEmbedder":
    from operators.models.processing import torch_arguments
    from operators.models.sentences import load_sentences

    return load_sentences(model.folder("checkpoint"), **torch_arguments(model))


FAMILY = Family(
    name="sentences",
    loads={"embedding": _load},
    form="an encoder such as BertModel",
    suits=_suits,
    check=_check,
    precise=True,
)
