"""The table of model families, and which options each has."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig

NAMES = {
    "clip_flant5": "clip_flant5:FAMILY",
    "clip": "dual_encoders:CLIP",
    "open_clip": "dual_encoders:OPEN_CLIP",
    "pyramid_clip": "dual_encoders:PYRAMID_CLIP",
    "siglip": "dual_encoders:SIGLIP",
    "align": "dual_encoders:ALIGN",
    "dino": "dino:FAMILY",
    "blip_itm": "blip:BLIP_ITM",
    "imagereward": "imagereward:FAMILY",
    "captioner": "captioner:FAMILY",
    "florence2": "florence2:FAMILY",
    "causal_lm": "language_models:CAUSAL_LM",
    "t5": "language_models:T5",
    "vlm": "vlm:FAMILY",
    "instructblip": "blip:INSTRUCTBLIP_FAMILY",
    "blip2": "blip:BLIP2_FAMILY",
    "blip_vqa": "blip:BLIP_VQA_FAMILY",
    "grounding_dino": "detectors:GROUNDING_DINO",
    "owlv2": "detectors:OWLV2",
    "got_ocr2": "text_readers:GOT_OCR2",
    "nli": "nli:FAMILY",
    "sentences": "sentences:FAMILY",
    "openai": "openai:FAMILY",
}
"""The module of this folder and the attribute that has each family, in the order of messages and documentation."""
FAMILIES = Extensions[Family[Any]](
    "families", {name: f"{__name__}.{location}" for name, location in NAMES.items()}, Family
)


def serving(call: Call) -> str:
    """Return the names of the families that serve a call, joined by "or"."""
    return " or ".join(name for name, family in FAMILIES.items() if call in family.calls)


def model_config(**options: Any) -> ModelConfig:
    """Return a model's options as the class of its family; raises ConfigError for an invalid or unknown option."""
    kept = own_options(options)
    family = FAMILIES[kept["family"]]
    unknown = sorted(kept.keys() - family.options)
    if unknown:
        raise ConfigError(f"model {unknown[0]}: no option of a model; {suggest(unknown[0], sorted(family.options))}")
    config: ModelConfig = family.config(**kept)
    return config


def own_options(options: Any) -> Any:
    """Return the options without other families' defaults, so that another `family` may be set over a chosen model.

    Raises ConfigError for an unknown family, and if an option of other families has another value.
    """
    if not isinstance(options, Mapping) or "family" not in options:
        return options
    name = options["family"]
    if name not in FAMILIES:
        raise ConfigError(
            f"model family: expected one of {', '.join(FAMILIES)}, got {name!r}; {suggest(str(name), list(FAMILIES))}"
        )
    foreign = {option: having for option in options if (having := families_with(option)) and name not in having}
    for option, having in foreign.items():
        if options[option] != _default(having[0], option):
            raise ConfigError(f"model {option}: an option of {' and '.join(having)}; remove it from this {name} model")
    return {option: value for option, value in options.items() if option not in foreign}


@cache
def families_with(option: str) -> list[str]:
    """Return the families that have this option."""
    return [name for name, family in FAMILIES.items() if option in family.options]


def _default(family: str, option: str) -> Any:
    default: Field[Any] = next(field for field in fields(FAMILIES[family].config) if field.name == option)
    return default.default if default.default_factory is MISSING else default.default_factory()
