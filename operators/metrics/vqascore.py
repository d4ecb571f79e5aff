"""VQAScore: the likelihood of "Yes" to one question about the image (vqascore_genai_bench.txt, eq. 2-3, appendix C)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from operators.errors import ConfigError

TEMPLATE = 'Does this figure show "{}"? Please answer yes or no.'

Reduction = Literal["mean", "product", "first"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaScoreConfig:
    """How the question is put and how the answer's token likelihoods become one number."""

    kind: Literal["vqascore"] = "vqascore"
    model: str = "vqa"
    """The role, among the sweep's models, of the VQA model."""
    template: str = TEMPLATE
    """The question; `{}` stands for the prompt's text. The default is the paper's."""
    answer: str = "Yes"
    """The answer whose likelihood is the score."""
    reduction: Reduction = "mean"
    """`mean`: exp of the mean log-probability over the answer's tokens with EOS, as the released code does;
    `product`: the paper's eq. 3; `first`: the first token alone."""

    def __post_init__(self) -> None:
        if self.template.count("{}") != 1:
            raise ConfigError(f"vqascore template: expected exactly one {{}} for the prompt, got {self.template!r}")
        if not self.answer.strip():
            raise ConfigError("vqascore answer: expected a word such as Yes, got an empty string")

    @property
    def roles(self) -> dict[str, str | None]:
        """The role of the model in each stage; None where a stage needs none."""
        return {"questions": None, "answers": self.model}

    def asking(self) -> dict[str, str]:
        """The part that decides what the model is asked; the reduction is applied afterwards."""
        return {"template": self.template, "answer": self.answer}

    def scoring(self) -> dict[str, str]:
        """How answers become a number."""
        return {"reduction": self.reduction}

    def question(self, text: str) -> str:
        """The question about an image of the prompt `text`, which is taken literally."""
        before, after = self.template.split("{}")
        return before + text + after


def reduce_answer(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """The score in [0, 1] of one answer from the natural-log probabilities of its tokens, EOS last."""
    if reduction == "first":
        return math.exp(token_logprobs[0])
    total = math.fsum(token_logprobs)
    return math.exp(total / len(token_logprobs) if reduction == "mean" else total)
