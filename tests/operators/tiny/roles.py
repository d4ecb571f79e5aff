"""A tiny checkpoint for every role that metrics use and that has no embedded model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.operators.tiny import captioners, detectors, judges, rewards
from tests.operators.tiny.kind import Kind
from tests.plugin_tests import merge_test_data

ROLES: Mapping[str, Kind] = {
    "pickscore": Kind("clip", rewards.save_pickscore),
    "align": Kind("align", rewards.save_align),
    "siglip": Kind("siglip", rewards.save_siglip),
    "itm": Kind("blip_itm", rewards.save_blip2_itm),
    "hpsv2": Kind("open_clip", rewards.save_open_clip),
    "pyramidclip": Kind("pyramid_clip", rewards.save_pyramid_clip),
    "negclip": Kind("open_clip", partial(rewards.save_open_clip, quick=True)),
    "imagereward": Kind("imagereward", rewards.save_imagereward),
    "dino": Kind("dino", rewards.save_dino),
    "captioner": Kind("captioner", captioners.save_blip),
    "grounder": Kind("florence2", captioners.save_florence2),
    "judge": Kind("causal_lm", judges.save_judge),
    "vlm": Kind("captioner", judges.save_seeing_judge),
    "detector": Kind("grounding_dino", detectors.save_grounding_dino),
    "reader": Kind("got_ocr2", detectors.save_got_ocr2),
    **merge_test_data("kinds", "ROLES"),
}
"""Kinds of networks of the tiny checkpoints, keyed by the role's name in conf/models/released.yaml."""


def save_tiny_models(folder: Path) -> list[str]:
    """Save all models below `folder`; return the command-line arguments that make a sweep use them."""
    return [
        f"+models.{role}={{family: {filled.family}, checkpoint: '{filled.save(folder / role)}'}}"
        for role, filled in ROLES.items()
    ]
