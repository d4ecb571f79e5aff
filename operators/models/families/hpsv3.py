"""HPSv3: how people would like an image for its prompt, by a Qwen2-VL with a regression head (Ma et al. 2025).

Its release is weights alone, which `python -m jobs.convert` makes a folder of (docs/models.md).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plumbline.operators.errors import ModelError
from plumbline.operators.models.checkpoints.parts import Fields, Part, architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.hpsv3 import HpsV3Similarity

ARCHITECTURE = "HpsV3"
INSTRUCTION = "instruction.txt"
"""What the model was trained to read, {text_prompt} standing for the prompt; it is a file of the checkpoint."""
AGAIN = "convert the release again (docs/models.md)"


def _check(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raises ModelError for an instruction without a place for the prompt."""
    file = parts["checkpoint"].file(INSTRUCTION)
    if file is not None and file.read_text().count("{text_prompt}") != 1:
        raise ModelError(f"{file}: expected one {{text_prompt}}, where the prompt stands; {AGAIN}")


def _load(model: "ResolvedModel") -> "HpsV3Similarity":
    from plumbline.operators.models.networks.hpsv3 import REWARD_TOKEN, HpsV3, HpsV3Similarity
    from plumbline.operators.models.processing import (
        load_chat_tokenizer,
        load_image_processor,
        load_pretrained,
    )

    folder, tokenizer = model.folder("checkpoint"), load_chat_tokenizer(model)
    if REWARD_TOKEN not in tokenizer.get_vocab():
        raise ModelError(f"{model.folder('tokenizer')}: the tokenizer has no {REWARD_TOKEN}; {AGAIN}")
    return HpsV3Similarity(
        load_pretrained(HpsV3, model),
        tokenizer,
        load_image_processor(folder),
        instruction=(folder / INSTRUCTION).read_text(),
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=(
        TOKENIZER,
        Files("checkpoint", ("preprocessor_config.json",), AGAIN),
        Files("checkpoint", (INSTRUCTION,), AGAIN),
    ),
    check=_check,
    measures=("reward",),
    version=lambda fields: 2,
)
