"""Random checkpoints of the plugin's reward models, in the layout of the release or of the conversion."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, XCLIPConfig, XCLIPModel

from plumbline.plugins.reward_models.reward_tokens import REWARD_TOKEN, VIDEO_RATINGS, EditReward, HpsV3, VideoReward
from plumbline.plugins.reward_models.token_rewards import EDIT_INSTRUCTION_FILES as FILES
from plumbline.plugins.reward_models.token_rewards import INSTRUCTION_FILE as FILE
from tests.operators import tiny
from tests.operators.tiny.rewards import enlarge_weights


def save_x_clip(folder: Path, *, seed: int = 0) -> Path:
    """Save an X-CLIP for three frames, with a preprocessor configuration in the form of its release."""
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


INSTRUCTION = "Rate what the image shows.\nTextual prompt - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n"


def save_hpsv3(folder: Path, *, seed: int = 0) -> Path:
    """Save a converted HPSv3: a Qwen2-VL whose tokenizer has one additional token."""
    tiny.save_qwen2_vl(folder, seed=seed)
    _save_token_reward(folder, HpsV3, (REWARD_TOKEN,), {FILE: INSTRUCTION}, seed=seed)
    return folder


EDIT_INSTRUCTIONS = (
    "\nRate how the edit follows.\nText instruction - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n",
    "\nRate how it looks.\nText instruction - {text_prompt}\n\nThe rating: <|Reward|>\nEND\n",
)


def save_editreward(folder: Path, *, seed: int = 0) -> Path:
    """Save a converted EditReward: a Qwen2.5-VL whose tokenizer has one additional token."""
    tiny.save_qwen2_vl(folder, seed=seed, kind="qwen2_5_vl")
    instructions = dict(zip(FILES, EDIT_INSTRUCTIONS, strict=True))
    _save_token_reward(folder, EditReward, (REWARD_TOKEN,), instructions, seed=seed)
    return folder


VIDEO_INSTRUCTION = (
    "\nRate the video.\nIts pictures: <|VQ_reward|>\nEND\nIts motion: <|MQ_reward|>\nEND\n"
    "Textual prompt - {text_prompt}\nIts fit: <|TA_reward|>\nEND\n"
)
REWARD_MEANS, REWARD_STDS = [3.5, -1.25, 2.75], [2.25, 1.5, 0.5]
FRAME_PIXELS = 10_000
"""Maximum number of pixels in a video frame, which the tiny model encodes in fewer than 157 tokens."""


def save_videoalign(folder: Path, *, seed: int = 0, heads: int = 1) -> Path:
    """Save a converted VideoAlign: a Qwen2-VL whose tokenizer has three additional tokens."""
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
