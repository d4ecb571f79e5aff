"""Tiny checkpoints for every kind of network in the plugin, and for every role that its metrics use."""

from collections.abc import Mapping
from functools import partial

from plugins.reward_models.tests import tiny_rewards
from tests.operators.tiny.kind import Kind

KINDS: Mapping[str, Kind] = {
    "hpsv3": Kind("hpsv3", tiny_rewards.save_hpsv3, "reward"),
    "videoalign": Kind("videoalign", tiny_rewards.save_videoalign, "reward"),
    "videoalign_three_heads": Kind("videoalign", partial(tiny_rewards.save_videoalign, heads=3), "reward"),
    "x_clip": Kind("x_clip", tiny_rewards.save_x_clip),
    "editreward": Kind("editreward", tiny_rewards.save_editreward, "reward"),
    "editreward_qwen3": Kind("editreward", partial(tiny_rewards.save_editreward, kind="qwen3_vl"), "reward"),
    "laion_aesthetic": Kind(
        "laion_aesthetic", partial(tiny_rewards.save_aesthetic, widths=tiny_rewards.AESTHETIC_HEAD_WIDTHS), "reward"
    ),
    "laion_aesthetic_v1": Kind("laion_aesthetic", tiny_rewards.save_aesthetic, "reward"),
    "fga_blip2": Kind("fga_blip2", tiny_rewards.save_fga_blip2, "reward"),
    "hpsv3_plus": Kind("hpsv3_plus", tiny_rewards.save_hpsv3_plus, "reward"),
    "mps": Kind("mps", tiny_rewards.save_mps, "reward"),
}
ROLES: Mapping[str, Kind] = {
    "hpsv3": KINDS["hpsv3"],
    "videoalign": KINDS["videoalign"],
    "xclip": KINDS["x_clip"],
    "editreward": KINDS["editreward"],
    "laion_aesthetic": KINDS["laion_aesthetic"],
    "fga_blip2": KINDS["fga_blip2"],
    "hpsv3_plus": KINDS["hpsv3_plus"],
    "mps": KINDS["mps"],
}
