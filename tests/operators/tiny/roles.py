"""A tiny checkpoint for every role that a metric names and the embedded world has none for."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.operators.tiny import captioners, detectors, judges, rewards


class Role(NamedTuple):
    """The model of a role."""

    family: str
    save: Callable[[Path], Path]
    """Writes the checkpoint into an empty folder and returns it."""


ROLES: Mapping[str, Role] = {
    "pickscore": Role("clip", rewards.save_pickscore),
    "align": Role("align", rewards.save_align),
    "siglip": Role("siglip", rewards.save_siglip),
    "itm": Role("blip_itm", rewards.save_blip2_itm),
    "hpsv2": Role("open_clip", rewards.save_open_clip),
    "pyramidclip": Role("pyramid_clip", rewards.save_pyramid_clip),
    "negclip": Role("open_clip", partial(rewards.save_open_clip, quick=True)),
    "imagereward": Role("imagereward", rewards.save_imagereward),
    "hpsv3": Role("hpsv3", rewards.save_hpsv3),
    "videoalign": Role("videoalign", rewards.save_videoalign),
    "xclip": Role("x_clip", rewards.save_x_clip),
    "dino": Role("dino", rewards.save_dino),
    "editreward": Role("editreward", rewards.save_editreward),
    "captioner": Role("captioner", captioners.save_blip),
    "grounder": Role("florence2", captioners.save_florence2),
    "judge": Role("causal_lm", judges.save_judge),
    "vlm": Role("captioner", judges.save_seeing_judge),
    "detector": Role("grounding_dino", detectors.save_grounding_dino),
    "reader": Role("got_ocr2", detectors.save_got_ocr2),
}
"""Keyed by the role's name in conf/models/released.yaml."""


def tiny_models(folder: Path) -> list[str]:
    """Save all models below `folder`; return the command-line arguments that give them to a sweep."""
    return [
        f"+models.{role}={{family: {filled.family}, checkpoint: '{filled.save(folder / role)}'}}"
        for role, filled in ROLES.items()
    ]
