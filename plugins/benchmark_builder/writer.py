"""What tagging and generation share: a language model writes about texts, and no image is scored by it."""

from dataclasses import dataclass
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive
from plumbline.operators.metrics.generation import GenerationChain
from plumbline.operators.metrics.reply_forms import Replies
from plumbline.operators.metrics.writing import ReplySampling


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions(BoundsChecked):
    """Who writes, and how replies are drawn and asked for."""

    section: ClassVar[str] = "writer "
    writer: str = "llm"
    """The role of the language model among the models."""
    max_tokens: Positive = 512
    """Tokens after which a reply is cut."""
    temperature: NotNegative = 0.0
    """0 takes the likeliest token each time."""
    seed: int = 0
    """Of the replies at a temperature above 0, and of the order in which generation asks for the values of controls."""
    replies: Replies = "text"
    """`text`, as the paper has it, or `json`, held to a schema, so that a small model's replies can be read too."""

    @property
    def sampling(self) -> ReplySampling:
        """How the replies are drawn."""
        return ReplySampling(self.max_tokens, self.temperature, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextWriter(GenerationChain):
    """A chain that ends where a language model has written: its rows are those of the table QUESTIONS."""

    chain: ClassVar[tuple[str, ...]] = ("questions",)
    final_stage: ClassVar[str] = "questions"
    role_keys: ClassVar[tuple[str, ...]] = ("writer",)
    options: WriterOptions

    @property
    def writer(self) -> str:
        """The role of its model."""
        return self.options.writer
