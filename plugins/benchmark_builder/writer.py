"""Base classes for tagging and generation: a language model writes texts without seeing images."""

from dataclasses import dataclass
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NonNegative, Positive
from plumbline.operators.metrics.generation import GenerationChain
from plumbline.operators.metrics.reply_forms import ReplyFormat
from plumbline.operators.metrics.writing import ReplySampling


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions(BoundsChecked):
    """The language model that writes the texts, and its sampling options."""

    section: ClassVar[str] = "writer "
    writer: str = "llm"
    """Role of the language model that writes."""
    max_tokens: Positive = 512
    """Maximum number of tokens in a reply; longer replies are cut off."""
    temperature: NonNegative = 0.0
    """Sampling temperature; 0 always selects the likeliest token."""
    seed: int = 0
    """Seed for replies at temperatures above 0, and for the order of control values in generation."""
    replies: ReplyFormat = "text"
    """Format of replies: `text`, as in the paper, or `json`, constrained by a schema, which helps small models."""

    @property
    def sampling(self) -> ReplySampling:
        return ReplySampling(self.max_tokens, self.temperature, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextWriter(GenerationChain):
    """Chain whose result is the texts that a language model writes, as rows with the schema QUESTIONS."""

    chain: ClassVar[tuple[str, ...]] = ("questions",)
    final_stage: ClassVar[str] = "questions"
    role_keys: ClassVar[tuple[str, ...]] = ("writer",)
    options: WriterOptions

    @property
    def writer(self) -> str:
        """Role of the language model."""
        return self.options.writer
