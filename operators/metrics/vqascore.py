"""VQAScore: the likelihood of "Yes" to one question about the image (vqascore_genai_bench.txt, eq. 2-3, appendix C)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from operators.errors import ConfigError
from operators.models.vqa_kinds import VqaKind, YesQuestion

Reduction = Literal["mean", "product", "first"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaScoreConfig:
    """How the question is put and how the answer's token likelihoods become one number.

    What is null is what the kind of the VQA model has (operators/models/vqa_kinds.py), once the metric is settled.
    """

    kind: Literal["vqascore"] = "vqascore"
    model: str = "vqa"
    """The role, among the sweep's models, of the VQA model."""
    template: str | None = None
    """The question; `{}` stands for the prompt's text."""
    answer: str | None = None
    """The answer whose likelihood is the score."""
    reduction: Reduction | None = None
    """`mean`: exp of the mean log-probability over the answer's tokens with EOS, as the released code does;
    `product`: the paper's eq. 3; `first`: the first token alone."""

    def __post_init__(self) -> None:
        if self.template is not None and self.template.count("{}") != 1:
            raise ConfigError(f"vqascore template: expected exactly one {{}} for the prompt, got {self.template!r}")
        if self.answer is not None and not self.answer.strip():
            raise ConfigError("vqascore answer: expected a word such as Yes, got an empty string")

    @property
    def roles(self) -> dict[str, str | None]:
        """The role of the model in each stage; None where a stage needs none."""
        return {"questions": None, "answers": self.model}

    def settled(self, kind: VqaKind) -> "VqaScoreConfig":
        """The metric with what it leaves open as models of a kind have it; only a settled one asks and scores."""
        own = {name: getattr(self, name) for name in YesQuestion._fields}
        return replace(self, **kind.asks._asdict() | {name: value for name, value in own.items() if value is not None})

    @property
    def asks(self) -> YesQuestion:
        """What a settled metric asks."""
        assert self.template is not None and self.answer is not None and self.reduction is not None, "it is settled"
        return YesQuestion(self.template, self.answer, self.reduction)

    def asking(self) -> dict[str, str]:
        """The part that decides what the model is asked; the reduction is applied afterwards."""
        return {"template": self.asks.template, "answer": self.asks.answer}

    def scoring(self) -> dict[str, str]:
        """How answers become a number."""
        return {"reduction": self.asks.reduction}

    def question(self, text: str) -> str:
        """The question about an image of the prompt `text`, which is taken literally."""
        before, after = self.asks.template.split("{}")
        return before + text + after


def reduce_answer(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """The score in [0, 1] of one answer from the natural-log probabilities of its tokens, EOS last."""
    if reduction == "first":
        return math.exp(token_logprobs[0])
    total = math.fsum(token_logprobs)
    return math.exp(total / len(token_logprobs) if reduction == "mean" else total)
