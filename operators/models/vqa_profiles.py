"""How VQA models are asked: the conversation, how an image is shown, and what VQAScore asks.

The profiles themselves are in the files of their families.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Reduction = Literal["mean", "product", "first"]
"""How the log-probabilities of an answer's tokens become a score (operators/metrics/vqascore.py)."""

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
"""What LLaVA-1.5 and CLIP-FlanT5 were trained to read before a conversation; without it their answers are worse."""


class YesQuestion(NamedTuple):
    """What VQAScore asks a model, unless its own options say otherwise."""

    template: str
    """The question; `{}` stands for the prompt's text."""
    answer: str
    """The answer whose likelihood is the score."""
    reduction: Reduction


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaProfile:
    """How a VQA model is asked."""

    name: str
    asks: YesQuestion
    system: str | None = None
    """The conversation's system message, where it is not the chat template that brings one."""
    compares: bool = False
    """True if its models only compare choices: they have no words of their own, and cannot weigh a single choice."""
    lettered: bool = False
    """True if its models report likelihoods of single tokens alone, so that choices are weighed by their letters."""
    pads: bool = False
    """Whether the released code pads an image to a square before anything else."""
    films: bool = False
    """Whether its models take the frames of a video as one video."""
    several: bool = False
    """Whether its models are shown several images in one question."""

    def with_system(self, system: str | None) -> "VqaProfile":
        """Return the profile with another system message: null keeps its own, an empty text leaves it out."""
        return self if system is None else replace(self, system=system or None)

    def semantic(self) -> dict[str, Any]:
        """The part that enters the keys of cells."""
        return {"kind": self.name}


RELEASED = YesQuestion('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")
"""Lin et al. 2024, as released for CLIP-FlanT5 and LLaVA-1.5."""
FIRST_TOKEN = YesQuestion('Does this figure show "{}"? Please answer Yes or No.', "Yes", "first")
"""The authors' later releases, for every decoder-only chat model."""
