"""What the metrics share whose questions a language model writes: their common options and how answers are weighed."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from operators.errors import ConfigError
from operators.metrics import reading
from operators.metrics.answered import Answered
from operators.metrics.vqascore import Reduction
from operators.metrics.writing import TOLD, Sampling

STOP = ("\nDescription:",)
"""Where a base model goes on with a further example."""


class Expected(NamedTuple):
    """What one prompt will take, as far as that is known before its questions are written."""

    calls: float
    """Requests to the writer; those that are asked again because their reply could not be read come on top."""
    questions: float
    """Each a call of the VQA model for every image, and of the entailment model where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig:
    """Who writes the questions and who answers them, and in which form they are put."""

    writer: str = "llm"
    """The role, among the sweep's models, of the language model that writes the questions."""
    model: str = "vqa"
    """The role of the VQA model that answers them."""
    max_tokens: int = 2048
    """Tokens after which a reply of the writer is cut; the papers do not say."""
    temperature: float = 0.0
    """Of the writer's replies; 0 takes the likeliest token each time. The papers do not say."""
    seed: int = 0
    """Of the writer's replies at a temperature above 0."""
    template: str = "{}"
    """How a question is put to the VQA model; `{}` stands for the question."""
    yes_no: Literal["capitalised", "as_written"] = "capitalised"
    """Whether yes and no are put as `Yes` and `No` (vqascore_genai_bench.txt) or as the writer wrote them."""

    def __post_init__(self) -> None:
        kind = str(getattr(self, "kind", "metric"))
        if self.template.count("{}") != 1:
            raise ConfigError(f"{kind} template: expected exactly one {{}} for the question, got {self.template!r}")
        for name in ("writer", "model"):
            require_role(kind, name, getattr(self, name))
        if self.max_tokens < 1:
            raise ConfigError(f"{kind} max_tokens: expected at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"{kind} temperature: expected 0 or more, got {self.temperature}")

    @property
    def sampling(self) -> Sampling:
        """How the writer's replies are drawn."""
        return Sampling(self.max_tokens, self.temperature, self.seed)

    @property
    def roles(self) -> dict[str, str]:
        """The model role of each stage."""
        return {"questions": self.writer, "answers": self.model}

    @property
    def form(self) -> Literal["likelihood", "reply"]:
        """Whether the VQA model weighs the choices or answers in its own words."""
        return "likelihood"

    def answering(self) -> dict[str, Any]:
        """All that decides how questions are put to the VQA model."""
        return {"form": self.form, "template": self.template, "yes_no": self.yes_no}

    def vqa_text(self, text: str) -> str:
        """A question's text as it is put to the VQA model."""
        before, after = self.template.split("{}")
        return before + text + after

    def vqa_choices(self, choices: Sequence[str]) -> tuple[str, ...]:
        """A question's choices as they are put to the VQA model, in the same order."""
        if self.yes_no == "as_written":
            return tuple(choices)
        return tuple(choice.capitalize() if choice.lower() in reading.YES_NO else choice for choice in choices)


def require_role(kind: str, name: str, value: str) -> None:
    """Raises ConfigError where a model role has no name."""
    if not value.strip():
        raise ConfigError(f"{kind} {name}: expected the role of one of the sweep's models, got {value!r}")


def require_share(kind: str, name: str, value: float) -> None:
    """Raises ConfigError where the value is not in [0, 1]."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{kind} {name}: expected a number from 0 to 1, got {value}")


def digest(*templates: str) -> str:
    """A short name for exactly these texts, together with those that all requests share."""
    return hashlib.sha256("\0".join([*STOP, TOLD, *templates]).encode()).hexdigest()[:16]


def log_likelihood(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """The natural log of vqascore.reduce_answer, which does not vanish for long answers."""
    if reduction == "first":
        return token_logprobs[0]
    total = math.fsum(token_logprobs)
    return total / len(token_logprobs) if reduction == "mean" else total


def log_likelihoods(answered: Answered, reduction: Reduction) -> list[float]:
    """The log-likelihood of each choice, in the question's order."""
    return [log_likelihood(logprobs, reduction) for logprobs in answered.token_logprobs]


def likeliest(answered: Answered, reduction: Reduction) -> str:
    """The likeliest choice; of equals the first."""
    logs = log_likelihoods(answered, reduction)
    return answered.question.choices[logs.index(max(logs))]
