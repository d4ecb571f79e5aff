"""The table of model families: each of ours is the FAMILY of the file of its name here."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.base.extensions import Extensions, in_folder
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig

NAMES = (
    "clip_flant5",
    "clip",
    "open_clip",
    "pyramid_clip",
    "siglip",
    "align",
    "dino",
    "blip_itm",
    "imagereward",
    "hpsv3",
    "videoalign",
    "x_clip",
    "editreward",
    "captioner",
    "florence2",
    "causal_lm",
    "t5",
    "vlm",
    "instructblip",
    "blip2",
    "blip_vqa",
    "grounding_dino",
    "owlv2",
    "got_ocr2",
    "rapidocr",
    "nli",
    "sentences",
    "openai",
    "diffusers",
    "openai_images",
)
FAMILIES = Extensions[Family[Any]]("families", in_folder(__name__, NAMES, "FAMILY"), Family)


def serving(call: Call) -> str:
    """The families that serve a call, in words."""
    return " or ".join(name for name, family in FAMILIES.items() if call in family.calls)


def model_config(**options: Any) -> ModelConfig:
    """A model's options as its family's class; raises ConfigError for a bad one, and for one that it does not have."""
    kept = own_options(options)
    family = FAMILIES[kept["family"]]
    unknown = sorted(kept.keys() - family.options)
    if unknown:
        raise ConfigError(f"model {unknown[0]}: no option of a model; {suggest(unknown[0], sorted(family.options))}")
    config: ModelConfig = family.config(**kept)
    return config


def own_options(options: Any) -> Any:
    """The options without those of other families that are at their defaults: another `family` may be set over a
    chosen model.

    Raises ConfigError for a family that there is not, and for an option of other families that is set.
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
    """The families of models that have an option."""
    return [name for name, family in FAMILIES.items() if option in family.options]


def _default(family: str, option: str) -> Any:
    default: Field[Any] = next(field for field in fields(FAMILIES[family].config) if field.name == option)
    return default.default if default.default_factory is MISSING else default.default_factory()
