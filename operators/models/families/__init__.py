"""The table of model families: each is the FAMILY of the file of its name here."""

from collections.abc import Mapping
from importlib import import_module

from plumbline.operators.models.family import Call, Family

NAMES = (
    "clip_flant5",
    "clip",
    "open_clip",
    "pyramid_clip",
    "siglip",
    "align",
    "blip_itm",
    "imagereward",
    "hpsv3",
    "captioner",
    "florence2",
    "causal_lm",
    "vlm",
    "instructblip",
    "blip2",
    "blip_vqa",
    "grounding_dino",
    "owlv2",
    "got_ocr2",
    "nli",
    "sentences",
    "openai",
)
FAMILIES: Mapping[str, Family] = {name: import_module(f"{__name__}.{name}").FAMILY for name in NAMES}


def serving(call: Call) -> str:
    """The families that serve a call, in words."""
    return " or ".join(name for name, family in FAMILIES.items() if call in family.calls)
