"""The table of model families, and the handling of each family's options."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig

FAMILY_LOCATIONS = {
    "clip_flant5": "clip_flant5:FAMILY",
    "clip": "dual_encoders:CLIP_FAMILY",
    "open_clip": "dual_encoders:OPEN_CLIP_FAMILY",
    "pyramid_clip": "dual_encoders:PYRAMID_CLIP_FAMILY",
    "siglip": "dual_encoders:SIGLIP_FAMILY",
    "align": "dual_encoders:ALIGN_FAMILY",
    "dino": "embedders:DINO_FAMILY",
    "blip_itm": "blip:BLIP_ITM_FAMILY",
    "imagereward": "blip:IMAGEREWARD_FAMILY",
    "captioner": "image_to_text:CAPTIONER_FAMILY",
    "florence2": "image_to_text:FLORENCE2_FAMILY",
    "causal_lm": "language_models:CAUSAL_LM_FAMILY",
    "t5": "language_models:T5_FAMILY",
    "vlm": "vlm:FAMILY",
    "instructblip": "blip:INSTRUCTBLIP_FAMILY",
    "blip2": "blip:BLIP2_FAMILY",
    "blip_vqa": "blip:BLIP_VQA_FAMILY",
    "grounding_dino": "detectors:GROUNDING_DINO_FAMILY",
    "owlv2": "detectors:OWLV2_FAMILY",
    "got_ocr2": "image_to_text:GOT_OCR2_FAMILY",
    "nli": "language_models:NLI_FAMILY",
    "sentences": "embedders:SENTENCE_EMBEDDER_FAMILY",
    "openai": "openai:FAMILY",
}
"""For each family, the module of this package and the attribute that define it, in the order used by messages."""
FAMILIES = Extensions[Family[Any]](
    "families", {name: f"{__name__}.{location}" for name, location in FAMILY_LOCATIONS.items()}, Family
)


def list_families_serving(call: Call) -> str:
    """Return the names of the families that serve a call, joined by "or"."""
    return " or ".join(name for name, family in FAMILIES.items() if call in family.calls)


def make_model_config(**options: Any) -> ModelConfig:
    """Return a model's configuration with these options; raise ConfigError for an invalid or unknown option.

    The options must include `family`.
    """
    own = drop_foreign_options(options)
    family = FAMILIES[own["family"]]
    unknown = sorted(own.keys() - family.options)
    if unknown:
        raise ConfigError(f"model {unknown[0]}: not a model option; {suggest(unknown[0], sorted(family.options))}")
    config: ModelConfig = family.config(**own)
    return config


def drop_foreign_options(options: Any) -> Any:
    """Return the options without those that belong only to other families, which must have their default values.

    This allows a user to choose a configured model and set only `family` to another value. Raises ConfigError for an
    unknown family, and for an option of another family whose value is not the default.
    """
    if not isinstance(options, Mapping) or "family" not in options:
        return options
    name = options["family"]
    if name not in FAMILIES:
        raise ConfigError(
            f"model family: expected one of {', '.join(FAMILIES)}, got {name!r}; {suggest(str(name), list(FAMILIES))}"
        )
    own = {}
    for option, value in options.items():
        owners = list_families_with_option(option)
        if not owners or name in owners:
            own[option] = value
            continue
        declared = next(field for field in fields(FAMILIES[owners[0]].config) if field.name == option)
        default = declared.default if declared.default_factory is MISSING else declared.default_factory()
        if value != default:
            raise ConfigError(
                f"model {option}: this option belongs to {' and '.join(owners)}; remove it from this {name} model"
            )
    return own


@cache
def list_families_with_option(option: str) -> list[str]:
    return [name for name, family in FAMILIES.items() if option in family.options]
