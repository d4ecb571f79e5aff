"""VQAScore: the likelihood of "Yes" to one question about the image (vqascore_genai_bench.txt, eq. 2-3, appendix C)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, Literal

from operators.errors import ConfigError
from operators.metrics.answered import Scored, incomplete
from operators.metrics.metric import Evidence, Metric
from operators.metrics.writing import Put, Writing, WrittenQuestion
from operators.models.vqa_kinds import VqaKind, YesQuestion

Reduction = Literal["mean", "product", "first"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaScoreConfig(Metric):
    """How the question is put and how the answer's token likelihoods become one number.

    What is null is what the kind of the VQA model has (operators/models/vqa_kinds.py), once the metric is settled.
    """

    kind: Literal["vqascore"] = "vqascore"
    story: ClassVar[str] = (
        "asks a model one question, whether the image shows the whole prompt, and takes the probability of “yes”"
    )
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
    def chain(self) -> tuple[str, ...]:
        return "questions", "answers", "scores"

    @property
    def roles(self) -> dict[str, str]:
        return {"model": self.model}

    def settled(self, kind_of: Callable[[str], VqaKind]) -> "VqaScoreConfig":
        """The metric with what it leaves open as models of the kind have it; only a settled one asks and scores."""
        kind = kind_of(self.model)
        own = {name: getattr(self, name) for name in YesQuestion._fields}
        return replace(self, **kind.asks._asdict() | {name: value for name, value in own.items() if value is not None})

    @property
    def asks(self) -> YesQuestion:
        """What a settled metric asks."""
        assert self.template is not None and self.answer is not None and self.reduction is not None, "it is settled"
        return YesQuestion(self.template, self.answer, self.reduction)

    def described(self) -> str:
        template, answer, reduction = self.asks
        return f"{template} ({answer}, {reduction})"

    def asking(self) -> dict[str, str]:
        """All that decides its question; the reduction is applied afterwards."""
        return {"template": self.asks.template, "answer": self.asks.answer}

    def answering(self) -> dict[str, str]:
        """All that decides how its question is put to the VQA model."""
        return {"kind": self.kind, **self.asking()}

    def scoring(self) -> dict[str, str]:
        """How answers become a number."""
        return {"reduction": self.asks.reduction}

    def question(self, prompt: str) -> str:
        """The question about an image of the prompt, which is taken literally."""
        before, after = self.asks.template.split("{}")
        return before + prompt + after

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The one question, which no model need write."""
        yield from ()
        return [WrittenQuestion("1", self.question(prompt), (self.asks.answer,))]

    def put(self, text: str, choices: Sequence[str]) -> Put:
        """The question as it stands."""
        return Put(text, tuple(choices), free=False)

    def score(self, evidence: Evidence) -> Scored:
        """The likelihood of the answer; the mean of them, should there be several questions."""
        answers = evidence.row["answers"]
        if not answers:
            return Scored(None, error=incomplete("answers", "lacks the answer to its prompt's question"))
        likelihoods = [reduce_answer(answer["token_logprobs"][0], self.asks.reduction) for answer in answers]
        return Scored(fmean(likelihoods), n_questions=len(likelihoods))


def reduce_answer(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """The score in [0, 1] of one answer from the natural-log probabilities of its tokens, EOS last."""
    return math.exp(log_likelihood(token_logprobs, reduction))


def log_likelihood(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """The natural log of `reduce_answer`, which does not vanish for long answers."""
    if reduction == "first":
        return token_logprobs[0]
    total = math.fsum(token_logprobs)
    return total / len(token_logprobs) if reduction == "mean" else total
