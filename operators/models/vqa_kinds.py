"""The kinds of VQA model: in which conversation each is asked, how it is shown an image, and what VQAScore asks it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from operators.metrics.vqascore import Reduction

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
"""What LLaVA-1.5 and CLIP-FlanT5 were trained to read before a conversation; without it their answers are worse."""
VICUNA_ENTRIES = 40_000
"""More than Vicuna's vocabulary, which is Llama 2's, and less than Llama 3's."""


class YesQuestion(NamedTuple):
    """What VQAScore asks a model, unless its own options say otherwise."""

    template: str
    """The question; `{}` stands for the prompt's text."""
    answer: str
    """The answer whose likelihood is the score."""
    reduction: "Reduction"


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaKind:
    """What models of one kind have in common."""

    name: str
    asks: YesQuestion
    system: str | None = None
    """The conversation's system message, where it is not the chat template that brings one."""
    pads: bool = False
    """Whether the released code pads an image to a square before anything else."""
    version: int = 1
    """Raised when results of the kind change; cells of version 1 were computed before kinds were in their keys."""

    def semantic(self) -> dict[str, Any]:
        """The part that enters the keys of cells."""
        return {"kind": self.name, "kind_version": self.version} if self.version > 1 else {}


RELEASED = YesQuestion('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")
"""Lin et al. 2024, as released for CLIP-FlanT5 and LLaVA-1.5."""
FIRST_TOKEN = YesQuestion('Does this figure show "{}"? Please answer Yes or No.', "Yes", "first")
"""The authors' later releases, for every decoder-only chat model."""

CLIP_FLANT5 = VqaKind(name="clip_flant5", asks=RELEASED, system=VICUNA_SYSTEM, pads=True, version=2)
LLAVA_1_5 = VqaKind(name="llava_1_5", asks=RELEASED, system=VICUNA_SYSTEM, pads=True, version=2)
LLAVA = VqaKind(name="llava", asks=FIRST_TOKEN, version=2)
"""LLaVA-shaped models with another tower or language model than LLaVA-1.5's."""
CHAT = VqaKind(name="chat", asks=FIRST_TOKEN)


def _vlm_kind(fields: Mapping[str, Any]) -> VqaKind:
    if fields["model_type"] != "llava":
        return CHAT
    text, vision = fields.get("text_config") or {}, fields.get("vision_config") or {}
    vicuna = text.get("model_type", "llama") == "llama" and text.get("vocab_size", 0) < VICUNA_ENTRIES
    return LLAVA_1_5 if vicuna and vision.get("model_type", "clip_vision_model") == "clip_vision_model" else LLAVA


KINDS: Mapping[str, Callable[[Mapping[str, Any]], VqaKind]] = {
    "clip_flant5": lambda fields: CLIP_FLANT5,
    "vlm": _vlm_kind,
}


def vqa_kind(family: str, fields: Mapping[str, Any]) -> VqaKind | None:
    """The kind of a checkpoint by its family and its config.json; None where it is no VQA model."""
    return KINDS[family](fields) if family in KINDS else None
