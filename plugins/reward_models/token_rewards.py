"""Model families of Qwen-VL reward models: HPSv3, VideoAlign's VideoReward and EditReward.

They are released as weights without a configuration, which `plumbline convert` turns into folders (README.md).
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import CONVERT_AGAIN, Fields, Part, architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel

INSTRUCTION = "instruction.txt"
"""File in an HPSv3 or VideoAlign checkpoint that contains the model's instruction, with {text_prompt} exactly once."""
INSTRUCTIONS = ("instruction_following.txt", "visual_quality.txt")
"""Files in an EditReward checkpoint that contain the instructions of the two heads."""


def _check_instruction(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError if an instruction does not contain the prompt's placeholder exactly once."""
    for name in (INSTRUCTION, *INSTRUCTIONS):
        file = parts["checkpoint"].file(name)
        if file is not None and file.read_text().count("{text_prompt}") != 1:
            raise ModelError(f"{file}: expected {{text_prompt}} exactly once, for the prompt; {CONVERT_AGAIN}")


def _token_reward(name: str, *instructions: str, **options: Any) -> Family[LocalModel]:
    """Return the family of a Qwen-VL that outputs rewards at special tokens of its instructions.

    Args:
        name: Class of the network in reward_tokens.py, and the architecture in config.json.
        instructions: Files in the checkpoint, each of which contains one instruction.
        options: Further fields of the family.
    """
    files = ("preprocessor_config.json", *instructions)
    return Family(
        config=LocalModel,
        oldest_transformers="5.16",
        loads={"similarity": lambda model: resolve_name(f"{__package__}.reward_tokens:{name}Similarity.load")(model)},
        form=f"a {name} folder from jobs.convert",
        suits=lambda fields: architecture(fields) == name,
        files=(TOKENIZER, *(Files("checkpoint", (file,), CONVERT_AGAIN) for file in files)),
        check=_check_instruction,
        measures=("reward",),
        **options,
    )


HPSV3 = _token_reward("HpsV3", INSTRUCTION)
"""Human preferences for an image and its prompt, predicted by a Qwen2-VL with a regression head (Ma et al. 2025)."""
VIDEOALIGN = _token_reward(
    "VideoReward",
    INSTRUCTION,
    ratings=("visual_quality", "motion_quality", "text_alignment"),
    reads_videos=True,
)
"""Human preferences for a video and its prompt, predicted by a Qwen2-VL (Liu et al. 2025)."""
EDITREWARD = _token_reward(
    "EditReward",
    *INSTRUCTIONS,
    compares=("edit",),
    several_images=True,
    ratings=("instruction_following", "visual_quality"),
)
"""Human preferences for an edited image and its source, predicted by a Qwen2.5-VL with two heads (Wu et al. 2025)."""
