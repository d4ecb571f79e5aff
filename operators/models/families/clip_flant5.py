"""CLIP-FlanT5: a CLIP tower that feeds FlanT5, the VQA model of the VQAScore paper (Lin et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import (
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    check_weights,
    find_part,
    read_fields,
)
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, defer_import
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VICUNA_SYSTEM, VqaProfile

CLIP_FLANT5_PROFILE = VqaProfile(name="clip_flant5", question="released", system=VICUNA_SYSTEM, pads_images=True)
REQUIRED_FIELDS = ("d_model", "mm_vision_tower", "mm_vision_select_layer")
FUSION_FIELD, FUSION = "mm_image_fusion", "decoder"
"""Field of config.json, and its value, of a checkpoint that was trained to compare two images (Fusion-in-Decoder)."""
SUPPORTED_FIELDS = {"mm_projector_type": "mlp2x_gelu", "mm_vision_select_feature": "patch", FUSION_FIELD: FUSION}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipFlanT5Model(LocalModel):
    family: Literal["clip_flant5"] = "clip_flant5"
    vision_tower: str | None = None
    """Hub id or folder of a CLIP tower that replaces the checkpoint's `mm_vision_tower`."""
    vision_tower_revision: str | None = None
    """Hub revision of the vision tower."""
    padding: Literal["released", "processor"] = "released"
    """`released` centres an image on a square of the mean colour, as the released VQAScore does; `processor` crops the
    centre, as CLIP's processor does.
    """
    system: str | None = None
    """System message before every question, instead of Vicuna's; an empty string means none (VQAScore, footnote 3)."""
    compiled: bool = False
    """True to compile FlanT5's encoder (torch.compile), which delays the first answers by up to a few minutes and
    changes results only by rounding.
    """


def _find_tower(config: ClipFlanT5Model, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    """Return the vision tower, a CLIP checkpoint that the options or config.json name, as an additional part.

    Its weights are needed only if the CLIP-FlanT5 checkpoint lacks them. Raise ModelError if the tower or the
    checkpoint is not supported.
    """
    part, fields = checkpoint.part, checkpoint.fields
    for name in REQUIRED_FIELDS:
        if name not in fields:
            raise ModelError(
                f"{part.source}: config.json lacks `{name}`, so it is not a CLIP-FlanT5 checkpoint; choose another"
            )
    for name, value in SUPPORTED_FIELDS.items():
        if fields.get(name, value) != value:
            raise ModelError(f"{part.source}: `{name}` is {fields[name]!r}; use a checkpoint in which it is {value!r}")
    named = config.vision_tower or fields["mm_vision_tower"]
    if not config.vision_tower and part.commit is None and named.startswith("."):
        named = str((Path(part.source) / named).resolve())  # relative to the checkpoint's own folder
    tower = find_part(named, config.vision_tower_revision, digest)
    model_type = read_fields(tower)["model_type"]
    if model_type not in ("clip", "clip_vision_model"):
        raise ModelError(
            f"{tower.source}: config.json has model_type {model_type!r}, but the vision tower must be a CLIP model; "
            "set the model's `vision_tower` to one"
        )
    if not any(name.startswith("vision_tower.") for name in checkpoint.tensors):
        check_weights(tower)
    return {"vision_tower": tower}


def find_profile(config: ClipFlanT5Model, fields: Fields) -> VqaProfile:
    """Return the VQA profile of a checkpoint, given the content of its config.json (`fields`)."""
    return replace(CLIP_FLANT5_PROFILE, several_images=FUSION_FIELD in fields).with_system(config.system)


FAMILY = Family(
    config=ClipFlanT5Model,
    loads={"likelihood": defer_import("networks.clip_flant5:ClipFlanT5Likelihood.load")},
    form="'clip_t5'",
    suits=lambda fields: fields["model_type"] == "clip_t5",
    files=(TOKENIZER, IMAGES._replace(part="vision_tower")),
    parts=_find_tower,
    options_in_key=lambda config, profile: {"padding": config.padding, "system": config.system},
    profile=find_profile,
)
