"""HPSv3: how people would like an image for its prompt, by a Qwen2-VL with a regression head (Ma et al. 2025).

Its release is weights alone, which `plumbline convert` makes a folder of (docs/models.md).
"""

from collections.abc import Mapping

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import (
    AGAIN,
    INSTRUCTION,
    INSTRUCTIONS,
    Fields,
    Part,
    architecture,
)
from plumbline.operators.models.family import TOKENIZER, Family, Files, lazily
from plumbline.operators.models.model import LocalModel

ARCHITECTURE = "HpsV3"


def check_instruction(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raises ModelError for an instruction without a place for the prompt."""
    for name in (INSTRUCTION, *INSTRUCTIONS):
        file = parts["checkpoint"].file(name)
        if file is not None and file.read_text().count("{text_prompt}") != 1:
            raise ModelError(f"{file}: expected one {{text_prompt}}, where the prompt stands; {AGAIN}")


def reward_files(*instructions: str) -> tuple[Files, ...]:
    """Of a Qwen-VL that rates at tokens of these instructions."""
    names = ("preprocessor_config.json", *instructions)
    return (TOKENIZER, *(Files("checkpoint", (name,), AGAIN) for name in names))


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": lazily("networks.hpsv3:HpsV3Similarity.load")},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=reward_files(INSTRUCTION),
    check=check_instruction,
    measures=("reward",),
)
