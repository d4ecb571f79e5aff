"""Protocols for the calls that stages make to models; model classes implement them."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage

if TYPE_CHECKING:
    import torch


Call = Literal[
    "likelihood",
    "generate",
    "generate_from_images",
    "regions",
    "detect",
    "ocr",
    "entailment",
    "embedding",
    "similarity",
    "draw",
]


class Message(NamedTuple):
    role: Literal["user", "assistant"]
    text: str


class Request(NamedTuple):
    """A conversation to be continued by a model, with limits and a form for the reply."""

    messages: tuple[Message, ...]
    max_tokens: int
    """Maximum length of the reply in tokens; longer replies are cut off."""
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end the reply; the reply does not include them."""
    schema: str | None = None
    """JSON schema of the reply, as a string, enforced if the backend supports it."""
    ends: tuple[int, ...] = ()
    """Token ids that end the reply, in addition to the model's own end tokens. Services ignore them."""
    system: str | None = None
    """System message. If the model runs here, the message is put at the start of the first message."""
    image_at: int | tuple[int, ...] = 0
    """Character index in the first message at which a service gets the images, or one index for each image, in order.
    A model that runs here always gets the images before the text.
    """
    view: int = 0
    """Index into the metric's `views`. The caller uses this index to select the images; models ignore it."""

    @property
    def messages_with_system(self) -> tuple[Message, ...]:
        """The messages of the conversation; the first one begins with the system message, if there is one."""
        if self.system is None:
            return self.messages
        first, *others = self.messages
        return (first._replace(text=f"{self.system}\n\n{first.text}"), *others)


MAX_ANSWER_TOKENS = 32
"""Maximum length of a free-form answer in tokens."""


class Generation(NamedTuple):
    """A model's reply to a request, with its length and usage."""

    text: str
    complete: bool
    """False if the reply was cut off at max_tokens."""
    usage: Usage
    ids: tuple[int, ...] = ()
    """The reply's tokens, including the end token, if the model's weights run here."""

    @property
    def usage_with_cut(self) -> Usage:
        """Usage of the call; its field `cut` is 1 if the reply was cut off at max_tokens, and 0 otherwise."""
        return self.usage._replace(cut=int(not self.complete))


class GenerateModel(Protocol):
    """Model that serves the call `generate(conversations) -> text`."""

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """Return the reply to each request, or an error. May be called from several threads at once."""


class ImageModel(Protocol):
    """Base protocol of models that read images: `preprocess` and `encode` prepare the images for the calls.

    The values returned by `preprocess` and `encode` have a different type for each model. Callers only pass them to the
    next call of the same model.
    """

    side_by_side: bool
    """True if the model itself batches the requests of several threads, so that callers should send many requests at
    once.
    """

    def preprocess(self, image: Image.Image) -> Any:
        """Return one RGB image in the form that `encode` reads, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Return the features of preprocessed images; all calls about the same image share its features."""


class MultiImageModel(ImageModel, Protocol):
    """A model that can answer a question about several images."""

    def preprocess_several(self, images: Sequence[Image.Image]) -> Any:
        """Return several RGB images as one input for `encode`; the model sees them in this order, before the text."""


class ImageRequest(NamedTuple):
    """A conversation about one image, or about several preprocessed together. The images come before the text."""

    image: int
    """Index of the image in the features passed to the call."""
    request: Request


class ImageGenerateModel(ImageModel, Protocol):
    """Captioner or chat model that serves the call `generate_from_images(images, conversations) -> text`."""

    def generate_from_images(
        self, features: Sequence[Any], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return, for each request in order, the model's reply, or an error if the request fails."""


class Region(NamedTuple):
    """A labelled box in an image, in pixels of the original image; x from the left, y from the top."""

    label: str
    x1: int
    y1: int
    x2: int
    y2: int


class RegionModel(ImageModel, Protocol):
    """Model that serves the call `regions(images) -> labelled boxes`, which names or describes regions of images."""

    def regions(self, features: Sequence[Any]) -> Sequence[list[Region] | RowError]:
        """Return the regions found in each image, in the order that the model lists them; the list may be empty."""


class DetectionRequest(NamedTuple):
    """A phrase to detect in one image, with the minimum scores for a detection."""

    image: int
    """Index of the image in the features passed to the call."""
    phrase: str
    box_threshold: float
    """Minimum score of a box (exclusive)."""
    text_threshold: float
    """Minimum score (exclusive) for a word to be included in a box's label, if the model scores each word of a phrase.
    """


class Box(NamedTuple):
    """A detected object: a box in pixels of the original image, x from the left, y from the top, with its score."""

    label: str
    score: float
    x1: float
    y1: float
    x2: float
    y2: float


class DetectionModel(ImageModel, Protocol):
    """Open-vocabulary detector, which serves the call `detect(images, phrases) -> boxes`."""

    def detect(self, features: Sequence[Any], requests: Sequence[DetectionRequest]) -> Sequence[list[Box] | RowError]:
        """Return the boxes found for each phrase, in the order that the model lists them; the list may be empty."""


class ReadingModel(ImageModel, Protocol):
    """Model that serves the call `ocr(images) -> text`, which reads the text in images."""

    def ocr(self, features: Sequence[Any]) -> Sequence[str | RowError]:
        """Return the text in each image, line by line; an empty string if the image has no text."""


class EntailmentModel(Protocol):
    """Model that serves the call `entailment(premises, hypotheses) -> probability`."""

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the probability of entailment for each (premise, hypothesis) pair."""


class Question(NamedTuple):
    """One question about one image, with the candidate answers to score."""

    image: int
    """Index of the image in the features passed to the call."""
    text: str
    choices: tuple[str, ...]


class LikelihoodModel(ImageModel, Protocol):
    """Model that serves the call `likelihood(images, questions with choices) -> log-probability of each choice`."""

    @property
    def usage(self) -> Usage:
        """Calls and tokens that this thread has used since the model was loaded."""

    def likelihood(
        self, features: Sequence[Any], questions: Sequence[Question]
    ) -> Sequence[list[list[float]] | RowError]:
        """Return the log-probability (natural log) of each token of each choice, end token included, or an error."""

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> Sequence[str | RowError]:
        """Return the likeliest free-form answer to each question, without showing the choices to the model."""


class ThreadUsageCounter:
    """Base class for models that several threads call: counts the calls and tokens of each thread separately."""

    def __init__(self) -> None:
        self._thread_local = threading.local()

    @property
    def usage(self) -> Usage:
        usage: Usage = getattr(self._thread_local, "usage", Usage())
        return usage

    def add_usage(self, usage: Usage) -> None:
        """Add this usage to the total of the calling thread."""
        self._thread_local.usage = self.usage.plus(usage)


PixelRule = Literal["processor", "released", "padded"]
"""Image preprocessing for a dual encoder: `processor` as in the checkpoint's processor; `released` as in CLIP's
released code; `padded` as in HPSv2, with the whole image on a black square.
"""


Measure = Literal["cosine", "logit", "match", "reward", "distance"]
"""Meaning of a similarity: `cosine`, the cosine of the two embeddings; `logit`, the cosine with the model's learned
scale and bias applied; `match`, the probability that image and text match; `reward`, a score learned from
human preferences; `distance`, which is 0 for two equal images and grows with their difference.
"""


ComparisonTarget = Literal["prompt", "caption", "source", "change", "edit", "image"]
"""What a similarity compares. `prompt`: an image with its prompt. `caption`: an edited image with the caption of the
intended result. `source`: an edited image with its source image. `change`: the change between the two images with the
change between their captions. `edit`: the prompt with both images, shown in one question. `image`: nothing; the image
is scored without its prompt.
"""


class TextFeatures(NamedTuple):
    """Unit-length embeddings of several texts, and which of the texts were truncated to fit the model's context."""

    features: "torch.Tensor"
    """Embeddings (n, width), float32."""
    truncated: list[bool]


class TextEmbedder(Protocol):
    """Model that serves the call `embedding(texts) -> vectors`. Similar texts get similar vectors."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings of the texts. Texts longer than the context are truncated and flagged."""


class Pair(NamedTuple):
    """An image, and the text or the source image that it is compared with.

    If both a source image and a source text are given, the change between the images is compared with the change
    between the texts.
    """

    image: int
    """Index of the image in the features passed to the call."""
    text: str = ""
    source: int | None = None
    """Index of the source image of an edit, if it is part of the comparison."""
    source_text: str = ""


class ComparisonResult(NamedTuple):
    """Similarity of an image to the text or source image that it was compared with."""

    similarity: float
    """Value in the requested measure."""
    truncated: bool
    """True if the text was truncated because it was longer than the model's context."""
    ratings: Mapping[str, float] | None = None
    """Components of the similarity by name, if the model reports several."""


class SimilarityModel(ImageModel, Protocol):
    """Model that serves the call `similarity(images, texts) -> number`.

    A dual encoder compares embeddings; a matching model or a reward model reads image and text together.
    """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Return one RGB image, preprocessed by this rule, in the form that `encode` reads, on the CPU."""

    def compare(
        self, features: Sequence[Any], pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return the similarity of each pair according to the given measure, which the model's family must support."""
