"""Checkpoints with random weights for the plugin's reward models, in the published or the converted layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, CLIPConfig, CLIPModel, XCLIPConfig, XCLIPModel

from plumbline.operators.models.processing import make_clip_processor
from plumbline.plugins.reward_models.aesthetic_network import AestheticPredictor
from plumbline.plugins.reward_models.fga_blip2_network import FgaBlip2
from plumbline.plugins.reward_models.hpsv3_plus_network import HpsV3Plus
from plumbline.plugins.reward_models.mps_network import Mps
from plumbline.plugins.reward_models.reward_tokens import (
    REWARD_TOKEN,
    VIDEO_RATINGS,
    EditReward,
    EditRewardQwen3,
    HpsV3,
    VideoReward,
)
from plumbline.plugins.reward_models.token_rewards import EDIT_INSTRUCTION_FILES as FILES
from plumbline.plugins.reward_models.token_rewards import INSTRUCTION_FILE as FILE
from tests.operators import tiny
from tests.operators.tiny.rewards import enlarge_weights, make_clip_tokenizer, save_blip2_itm, save_pickscore


def save_x_clip(folder: Path, *, seed: int = 0) -> Path:
    frames = {
        "num_frames": 3,
        "mit_hidden_size": 16,
        "mit_intermediate_size": 24,
        "mit_num_hidden_layers": 1,
        "mit_num_attention_heads": 2,
    }
    network = XCLIPModel(
        XCLIPConfig(
            vision_config=tiny.VISION_FIELDS | frames,
            text_config=tiny.TEXT_FIELDS,
            projection_dim=16,
            prompt_layers=2,
            prompt_alpha=0.5,
            prompt_num_attention_heads=2,
        )
    )
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder, template="<s> $A </s>")
    tiny.save_preprocessor(folder)
    return folder


MPS_CONTEXT_TOKENS = 77
"""Context length of the released MPS, in which its conditions differ even if every letter is a token."""


def save_mps(folder: Path, *, seed: int = 0) -> Path:
    """Save an MPS in the layout of a converted release."""
    save_pickscore(folder)
    config = CLIPConfig.from_pretrained(folder)
    config.text_config.max_position_embeddings = MPS_CONTEXT_TOKENS
    config.cross_layers, config.cross_heads = 2, 3
    network = Mps(config)
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    tokenizer = make_clip_tokenizer()
    tokenizer.model_max_length = MPS_CONTEXT_TOKENS
    tokenizer.save_pretrained(folder)
    return folder


def save_fga_blip2(folder: Path, *, seed: int = 0) -> Path:
    """Save an FGA-BLIP2 in the layout of a converted release."""
    save_blip2_itm(folder, seed=seed)
    network = FgaBlip2.from_pretrained(folder)
    for name, tensor in network.named_parameters():
        if name.endswith("qkv.bias"):  # in the release, only queries and values have a bias
            query, _, value = torch.randn(3, len(tensor) // 3)
            tensor.data = torch.cat([query, torch.zeros_like(query), value])
    network.save_pretrained(folder)
    return folder


AESTHETIC_HEAD_WIDTHS = [12, 8, 6, 4, 1]


def save_fixed_clip(folder: Path) -> Path:
    """Save a CLIP whose weights are the same in every call."""
    torch.manual_seed(0)
    return save_pickscore(folder)


def save_aesthetic(folder: Path, *, seed: int = 0, relu: bool = False, widths: Sequence[int] = (1,)) -> Path:
    """Save an aesthetic predictor in its converted layout, with the vision tower that `save_fixed_clip` saves."""
    save_fixed_clip(folder)
    clip = CLIPModel.from_pretrained(folder)
    config = clip.config.vision_config
    config.projection_dim = clip.config.projection_dim
    config.head_relu, config.head_widths = relu, list(widths)
    network = AestheticPredictor(config)
    enlarge_weights(network, seed=seed, deviation=0.5)
    network.load_state_dict(clip.state_dict(), strict=False)
    network.save_pretrained(folder)
    make_clip_processor(tiny.IMAGE_SIDE).save_pretrained(folder)
    for file in folder.glob("*token*"):
        file.unlink()
    return folder


INSTRUCTION = "Rate what the image shows.\nTextual prompt - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n"


def save_hpsv3(folder: Path, *, seed: int = 0) -> Path:
    tiny.save_qwen2_vl(folder, seed=seed)
    _save_token_reward(folder, HpsV3, (REWARD_TOKEN,), {FILE: INSTRUCTION}, seed=seed)
    return folder


HPSV3_PLUS_FIELDS = {"condition_width": 6, "image_factor": 6, "image_pixels": 900}
"""Fields of the tiny HPSv3++. The first resizing is to multiples of 6 pixels, Qwen3-VL's own to multiples of 8."""


def save_hpsv3_plus(folder: Path, *, seed: int = 0) -> Path:
    """Save a converted HPSv3++: a Qwen3-VL whose tokenizer has one additional token."""
    tiny.save_qwen2_vl(folder, seed=seed, kind="qwen3_vl")
    _save_token_reward(folder, HpsV3Plus, (REWARD_TOKEN,), {FILE: INSTRUCTION}, seed=seed, **HPSV3_PLUS_FIELDS)
    return folder


EDIT_INSTRUCTIONS = (
    "\nRate how the edit follows.\nText instruction - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n",
    "\nRate how it looks.\nText instruction - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n",
)


def save_editreward(folder: Path, *, seed: int = 0, kind: str = "qwen2_5_vl") -> Path:
    """Save a converted EditReward on a Qwen2.5-VL, or on the Qwen3-VL that `kind` names."""
    tiny.save_qwen2_vl(folder, seed=seed, kind=kind)
    instructions = dict(zip(FILES, EDIT_INSTRUCTIONS, strict=True))
    architecture = EditRewardQwen3 if kind == "qwen3_vl" else EditReward
    _save_token_reward(folder, architecture, (REWARD_TOKEN,), instructions, seed=seed)
    return folder


VIDEO_INSTRUCTION = (
    "\nRate the video.\nIts pictures: <|VQ_reward|>\nEND\nIts motion: <|MQ_reward|>\nEND\n"
    "Textual prompt - {text_prompt}\nIts fit: <|TA_reward|>\nEND\n"
)
REWARD_MEANS, REWARD_STDS = [3.5, -1.25, 2.75], [2.25, 1.5, 0.5]
FRAME_PIXELS = 10_000
"""Maximum number of pixels in a video frame, which the tiny model encodes in fewer than 157 tokens."""


def save_videoalign(folder: Path, *, seed: int = 0, heads: int = 1) -> Path:
    tiny.save_qwen2_vl(folder, seed=seed)
    scores = {"reward_heads": heads, "reward_means": REWARD_MEANS, "reward_stds": REWARD_STDS}
    fields = {**scores, "max_frame_pixels": FRAME_PIXELS}
    _save_token_reward(
        folder, VideoReward, tuple(VIDEO_RATINGS.values()), {FILE: VIDEO_INSTRUCTION}, seed=seed, **fields
    )
    return folder


def _save_token_reward(
    folder: Path,
    architecture: Any,
    tokens: Sequence[str],
    instructions: Mapping[str, str],
    *,
    seed: int,
    **fields: Any,
) -> None:
    """Convert the folder of a Qwen-VL to a reward model with reward tokens. `fields` are added to its config.json."""
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]}, replace_extra_special_tokens=False)
    config.text_config.vocab_size = len(tokenizer)
    for name, value in fields.items():
        setattr(config, name, value)
    network = architecture(config)
    enlarge_weights(network, seed=seed, deviation=0.3)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file, instruction in instructions.items():
        (folder / file).write_text(instruction)
