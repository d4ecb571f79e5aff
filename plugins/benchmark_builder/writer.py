"""Base classes of tagging and generation: a language model writes about texts, without images."""

from dataclasses import dataclass
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive
from plumbline.operators.metrics.generation import GenerationChain
from plumbline.operators.metrics.reply_forms import Replies
from plumbline.operators.metrics.writing import ReplySampling


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions(BoundsChecked):
    """The model that writes, and its sampling."""

    section: ClassVar[str] = "writer "
    writer: str = "llm"
    """Role of the language model."""
    max_tokens: Positive = 512
    """Tokens after which a reply is cut."""
    temperature: NotNegative = 0.0
    """0 always takes the likeliest token."""
    seed: int = 0
    """Seed of replies at a temperature above 0, and of the order of control values in generation."""
    replies: Replies = "text"
    """`text`, as in the paper, or `json`, restricted to a schema, which helps small models."""

    @property
    def sampling(self) -> ReplySampling:
        return ReplySampling(self.max_tokens, self.temperature, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextWriter(GenerationChain):
    """A chain that ends after a language model has written; its rows have the schema QUESTIONS."""

    chain: ClassVar[tuple[str, ...]] = ("questions",)
    final_stage: ClassVar[str] = "questions"
    role_keys: ClassVar[tuple[str, ...]] = ("writer",)
    options: WriterOptions

    @property
    def writer(self) -> str:
        """Role of its model."""
        return self.options.writer
