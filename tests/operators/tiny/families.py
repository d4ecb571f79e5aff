"""A tiny checkpoint for every kind of network that a model family supports."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.operators import tiny
from tests.operators.tiny import captioners, chat_vlms, detectors, rewards, vqa_models
from tests.operators.tiny.kind import Kind
from tests.plugin_tests import merge_test_data


def save_clip_flant5(folder: Path) -> Path:
    """Save a CLIP-FlanT5, and in a neighbouring folder the CLIP with its vision tower."""
    tiny.save_clip(folder / "clip")
    return tiny.save_flant5(folder / "flant5", tiny.make_flant5_weights())


KINDS: Mapping[str, Kind] = {
    "clip_flant5": Kind("clip_flant5", save_clip_flant5),
    "clip": Kind("clip", tiny.save_clip),
    "pickscore": Kind("clip", rewards.save_pickscore),
    "open_clip": Kind("open_clip", rewards.save_open_clip),
    "open_clip_quick": Kind("open_clip", partial(rewards.save_open_clip, quick=True)),
    "pyramid_clip": Kind("pyramid_clip", rewards.save_pyramid_clip),
    "siglip": Kind("siglip", rewards.save_siglip),
    "siglip2": Kind("siglip", rewards.save_siglip2),
    "siglip2_naflex": Kind("siglip", rewards.save_siglip2_naflex),
    "align": Kind("align", rewards.save_align),
    "dino": Kind("dino", rewards.save_dino),
    "dinov2": Kind("dino", partial(rewards.save_dino, second=True)),
    "blip_itm": Kind("blip_itm", rewards.save_blip_itm, "match"),
    "blip2_itm": Kind("blip_itm", rewards.save_blip2_itm, "match"),
    "imagereward": Kind("imagereward", rewards.save_imagereward, "reward"),
    "blip": Kind("captioner", captioners.save_blip),
    "git": Kind("captioner", captioners.save_git),
    "blip2_opt": Kind("captioner", captioners.save_blip2_opt),
    "florence2": Kind("florence2", captioners.save_florence2),
    "causal_lm": Kind("causal_lm", tiny.save_causal_lm),
    "llava": Kind("vlm", tiny.save_llava),
    "qwen2_vl": Kind("vlm", tiny.save_qwen2_vl),
    "gemma3": Kind("vlm", chat_vlms.save_gemma3),
    "instructblip": Kind("instructblip", vqa_models.save_instructblip),
    "blip2": Kind("blip2", vqa_models.save_blip2),
    "blip_vqa": Kind("blip_vqa", vqa_models.save_blip_vqa),
    "grounding_dino": Kind("grounding_dino", detectors.save_grounding_dino),
    "owlv2": Kind("owlv2", detectors.save_owlv2),
    "got_ocr2": Kind("got_ocr2", detectors.save_got_ocr2),
    "cross_encoder": Kind("nli", tiny.save_nli),
    "t5": Kind("nli", tiny.save_true_nli),
    "text_only_t5": Kind("t5", tiny.save_true_nli),
    "sentences": Kind("sentences", tiny.save_sentence_encoder),
    **merge_test_data("kinds", "KINDS"),
}
"""Kinds of networks that have a tiny checkpoint, keyed by name; the kinds from plugins come last."""
