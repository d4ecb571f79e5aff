"""The type of a VQA model's profile; the profiles are in the modules of their families."""

from dataclasses import dataclass, replace
from typing import Any, Literal

QuestionName = Literal["released", "first_token", "released_first_token", "blip", "blip2", "instructblip"]
"""Names of VQAScore's questions (operators/metrics/questions/vqascore.py, DEFAULT_QUESTIONS)."""
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
"""Message before every conversation in the training of LLaVA-1.5 and CLIP-FlanT5, whose answers are worse without it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaProfile:
    """Properties that decide how a VQA model is asked."""

    name: str
    question: QuestionName = "first_token"
    """VQAScore's question, unless the metric's options set another."""
    system: str | None = None
    """The conversation's system message, unless the chat template provides one."""
    compares: bool = False
    """True if its models can only compare choices: they write no text and cannot score a single choice."""
    lettered: bool = False
    """True if its models only report likelihoods of single tokens, so that choices are scored by their letters."""
    pads_images: bool = False
    """True if the released code pads an image to a square first."""
    reads_videos: bool = False
    """True if its models read the frames of a video as one video."""
    several_images: bool = False
    """True if its models can see several images in one question."""

    def with_system(self, system: str | None) -> "VqaProfile":
        """Return the profile with another system message: None keeps its own, an empty text sends none."""
        return self if system is None else replace(self, system=system or None)

    def semantic(self) -> dict[str, Any]:
        """Return the fields that enter the keys of cells."""
        return {"kind": self.name}
