"""Defines what a VQA model's profile contains; the profiles themselves are in the family modules."""

from dataclasses import dataclass, replace
from typing import Any, Literal

QuestionName = Literal["released", "first_token", "released_first_token", "blip", "blip2", "instructblip"]
"""Names of VQAScore's questions (operators/metrics/questions/vqascore.py, DEFAULT_QUESTIONS)."""
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
"""System message in the training conversations of LLaVA-1.5 and CLIP-FlanT5; without this message, the answers are
worse.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaProfile:
    """Properties that determine how a VQA model is asked questions."""

    name: str
    question: QuestionName = "first_token"
    """The question that VQAScore asks, unless the metric's options set a different question."""
    system: str | None = None
    """System message of a conversation, unless the chat template provides one."""
    compares: bool = False
    """True if the model can only compare choices: it generates no text, and cannot score a single choice."""
    lettered: bool = False
    """True if the model only reports likelihoods of single tokens, so that choices are scored by their letters."""
    pads_images: bool = False
    """True if the released code pads an image to a square first."""
    reads_videos: bool = False
    """True if the model reads the frames of a video as one video."""
    several_images: bool = False
    """True if the model can see several images in one question."""

    def with_system(self, system: str | None) -> "VqaProfile":
        """Return the profile with this system message.

        None keeps the profile's own message; an empty string means no message.
        """
        return self if system is None else replace(self, system=system or None)

    def list_key_properties(self) -> dict[str, Any]:
        """Return the profile's name, the only part of the profile that is used in cell keys."""
        return {"kind": self.name}
