"""The model calls that metrics are made of, as protocols a backend implements and an operator relies on."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from PIL import Image

from operators.errors import RowError

if TYPE_CHECKING:
    import torch


class Usage(NamedTuple):
    """What model calls took, in tokens where the model counts any."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from a prefix cache."""
    new_tokens: int = 0
    cut: int = 0
    """Replies that were cut at max_tokens."""

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, self, other))

    def minus(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.sub, self, other))


class Message(NamedTuple):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    text: str


class Request(NamedTuple):
    """A conversation to be continued by the model."""

    messages: tuple[Message, ...]
    max_tokens: int
    """The reply is cut there."""
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these."""
    schema: str | None = None
    """A JSON schema, as text, that the reply must fit where the backend can enforce one."""


class Generation(NamedTuple):
    """A model's reply."""

    text: str
    complete: bool
    """False where it was cut at max_tokens."""
    usage: Usage


class GenerateModel(Protocol):
    """`generate(conversations) -> text`."""

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none; may be called from several threads at once."""


class EntailmentModel(Protocol):
    """`entailment(premises, hypotheses) -> probability`."""

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The probability in [0, 1] that each (premise, hypothesis) pair is one of entailment."""


class Question(NamedTuple):
    """One question about one image, with the candidate answers whose likelihood is wanted."""

    image: int
    """Index into the images of the call."""
    text: str
    choices: tuple[str, ...]


class LikelihoodModel(Protocol):
    """`likelihood(images, questions with candidate answers) -> log-probability of each answer`.

    What `preprocess` and `encode` return is the backend's own matter; it gets it back in the next call.
    """

    side_by_side: bool
    """Whether it batches by itself all that several threads ask: it is then to be asked as much at once as there is."""

    @property
    def usage(self) -> Usage:
        """What the calls of this thread have taken since it was loaded."""

    def preprocess(self, image: Image.Image) -> Any:
        """One RGB image made ready for `encode`, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Preprocessed images as what every question on them shares, computed once for each."""

    def likelihood(
        self, features: Sequence[Any], questions: Sequence[Question]
    ) -> Sequence[list[list[float]] | RowError]:
        """Natural-log probability of every token of every choice of every question, EOS included; or why not."""

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> Sequence[str | RowError]:
        """The model's own answer to every question, in its likeliest words; the choices are not shown to it."""


PixelRule = Literal["processor", "released"]
"""How an image is made a dual encoder's input: as its checkpoint's processor does, or as CLIP's released code did."""


class TextFeatures(NamedTuple):
    """Unit-length text embeddings and which texts did not fit the model's context."""

    features: "torch.Tensor"
    """(n, width), float32."""
    truncated: list[bool]


class TextEmbedder(Protocol):
    """Texts as points that are near where the texts mean the same."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings; those beyond the context are cut and reported."""


class Pair(NamedTuple):
    """One image and the text it is compared with."""

    image: int
    """Index into the images of the call."""
    text: str


class Compared(NamedTuple):
    """How well an image fits a text."""

    similarity: float
    """As the model gives it: a cosine, a matching probability or a reward."""
    truncated: bool
    """Whether the text was longer than the model's context, and cut."""


class SimilarityModel(Protocol):
    """`similarity(images, texts) -> number`, in two steps so that each image is encoded once.

    What `preprocess` and `encode` return is the backend's own matter; it gets it back in the next call. A dual encoder
    compares embeddings, a matching model or a reward model reads image and text together.
    """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """One RGB image made ready for `encode`, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Preprocessed images as what every comparison with them shares, computed once for each."""

    def compare(self, features: Sequence[Any], pairs: Sequence[Pair]) -> list[Compared]:
        """How well each pair fits."""
