"""Model families of Qwen-VL reward models: HPSv3, VideoAlign's VideoReward and EditReward.

They are published as weights without a configuration. `plumbline convert` converts them to checkpoints (README.md).
"""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import (
    CONVERT_AGAIN_REMEDY,
    Fields,
    Part,
    find_architecture,
    read_fields,
)
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel, ResolvedModel

INSTRUCTION_FILE = "instruction.txt"
"""File with the instruction in an HPSv3 or VideoAlign checkpoint. It must contain {text_prompt} exactly once."""
EDIT_INSTRUCTION_FILES = ("instruction_following.txt", "visual_quality.txt")
"""Files with the two heads' instructions in an EditReward checkpoint."""


def _check_instruction(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError if an instruction does not contain the prompt's placeholder exactly once."""
    for name in (INSTRUCTION_FILE, *EDIT_INSTRUCTION_FILES):
        file = parts["checkpoint"].find_file(name)
        if file is not None and file.read_text().count("{text_prompt}") != 1:
            raise ModelError(f"{file}: expected {{text_prompt}} exactly once, for the prompt; {CONVERT_AGAIN_REMEDY}")


def _load(model: ResolvedModel[LocalModel]) -> Any:
    name = find_architecture(read_fields(model.parts["checkpoint"]))
    return resolve_name(f"{__package__}.reward_tokens:{name}Similarity.load")(model)


def _make_token_reward_family(names: Sequence[str], *instructions: str, **options: Any) -> Family[LocalModel]:
    """Return the model family of a Qwen-VL whose rewards are read at special tokens of its instructions.

    Args:
        names: Classes of the networks in reward_tokens.py; one of them is the architecture in config.json.
        instructions: Files in the checkpoint that contain one instruction each.
        options: Further fields of the family.
    """
    files = ("preprocessor_config.json", *instructions)
    return Family(
        config=LocalModel,
        oldest_transformers="5.16",
        loads={"similarity": _load},
        form=f"a {names[0]} folder from jobs.convert",
        suits=lambda fields: find_architecture(fields) in names,
        files=(TOKENIZER, *(Files("checkpoint", (file,), CONVERT_AGAIN_REMEDY) for file in files)),
        check=_check_instruction,
        measures=("reward",),
        **options,
    )


HPSV3 = _make_token_reward_family(["HpsV3"], INSTRUCTION_FILE)
"""Model family HPSv3: a Qwen2-VL with a regression head that predicts human preferences for images (Ma et al. 2025)."""
VIDEOALIGN = _make_token_reward_family(
    ["VideoReward"],
    INSTRUCTION_FILE,
    ratings=("visual_quality", "motion_quality", "text_alignment"),
    reads_videos=True,
)
"""Model family VideoAlign: a Qwen2-VL that predicts human preferences for videos (Liu et al. 2025)."""
EDITREWARD = _make_token_reward_family(
    ["EditReward", "EditRewardQwen3"],
    *EDIT_INSTRUCTION_FILES,
    compares=("edit",),
    several_images=True,
    ratings=("instruction_following", "visual_quality"),
)
"""Model family EditReward: a Qwen2.5-VL or Qwen3-VL with two heads that predicts human preferences for edits (Wu et al.
2025).
"""
