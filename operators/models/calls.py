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
    """A conversation that the model continues."""

    messages: tuple[Message, ...]
    max_tokens: int
    """Maximum length of the reply in tokens; longer replies are cut."""
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end the reply; the reply does not include them."""
    schema: str | None = None
    """JSON schema of the reply, as a string, enforced if the backend supports it."""
    ends: tuple[int, ...] = ()
    """Token ids that end the reply, in addition to the model's own. Only for models whose weights run here."""
    system: str | None = None
    """System message. For a model whose weights run here, it is put at the start of the first message."""
    image_at: int = 0
    """Character index in the first message at which a service receives the images. Models whose weights run here always
    receive the images first.
    """
    view: int = 0
    """Index into the metric's `views`, which selects the images that the model receives; models ignore it."""

    @property
    def messages_with_system(self) -> tuple[Message, ...]:
        """The messages, with the system message at the start of the first one."""
        if self.system is None:
            return self.messages
        first, *others = self.messages
        return (first._replace(text=f"{self.system}\n\n{first.text}"), *others)


MAX_ANSWER_TOKENS = 32
"""Maximum length of a free-form answer in tokens."""


class Generation(NamedTuple):
    """A model's reply."""

    text: str
    complete: bool
    """False if the reply was cut at max_tokens."""
    usage: Usage
    ids: tuple[int, ...] = ()
    """The reply's tokens, including the end token, if the model's weights run here."""

    @property
    def usage_with_cut(self) -> Usage:
        """The usage, with `cut` set to 1 if the reply was cut."""
        return self.usage._replace(cut=int(not self.complete))


class GenerateModel(Protocol):
    """Model that serves the call `generate(conversations) -> text`."""

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """Return the reply to each request, or an error. May be called from several threads at once."""


class ImageModel(Protocol):
    """Base protocol of models that read images.

    What `preprocess` and `encode` return depends on the model, and is only passed to the model's own next call.
    """

    side_by_side: bool
    """True if the model itself batches the requests of several threads, and should receive many at once."""

    def preprocess(self, image: Image.Image) -> Any:
        """Prepare one RGB image for `encode`, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Compute the features of preprocessed images, once per image, for the next call."""


class SeveralImagesModel(ImageModel, Protocol):
    """A model that can see several images in one question."""

    def preprocess_several(self, images: Sequence[Image.Image]) -> Any:
        """Prepare RGB images, which precede the text one after another, as a single input for `encode`."""


class ImageRequest(NamedTuple):
    """A conversation about one image, or about several that were preprocessed together; images come first."""

    image: int
    """Index of the image among the images of the call."""
    request: Request


class ImageGenerateModel(ImageModel, Protocol):
    """Captioner or chat model that serves the call `generate_from_images(images, conversations) -> text`."""

    def generate_from_images(
        self, features: Sequence[Any], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return the reply to each request, or an error."""


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
        """Return the regions of each image in the model's order; an image may have none."""


class DetectionRequest(NamedTuple):
    """A phrase to detect in one image."""

    image: int
    """Index of the image among the images of the call."""
    phrase: str
    box_threshold: float
    """Minimum score of a box (exclusive)."""
    text_threshold: float
    """Minimum score (exclusive) for a word to be included in a box's label, if the model scores each word of a phrase.
    """


class Box(NamedTuple):
    """An object in an image, in pixels of the original image; x from the left, y from the top."""

    label: str
    score: float
    x1: float
    y1: float
    x2: float
    y2: float


class DetectionModel(ImageModel, Protocol):
    """Open-vocabulary detector, which serves the call `detect(images, phrases) -> boxes`."""

    def detect(self, features: Sequence[Any], requests: Sequence[DetectionRequest]) -> Sequence[list[Box] | RowError]:
        """Return the boxes for each phrase in the model's order; an empty list if nothing is found."""


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
    """Index of the image among the images of the call."""
    text: str
    choices: tuple[str, ...]


class LikelihoodModel(ImageModel, Protocol):
    """Model that serves the call `likelihood(images, questions with choices) -> log-probability of each choice`."""

    @property
    def usage(self) -> Usage:
        """Usage of this thread's calls since the model was loaded."""

    def likelihood(
        self, features: Sequence[Any], questions: Sequence[Question]
    ) -> Sequence[list[list[float]] | RowError]:
        """Return the natural-log probability of every token of every choice, including its end, or an error."""

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> Sequence[str | RowError]:
        """Return the model's likeliest free-form answer to every question; it is not shown the choices."""


class ThreadUsage:
    """Usage of a model that several threads call; each thread sees only its own usage."""

    def __init__(self) -> None:
        self._thread_local = threading.local()

    @property
    def usage(self) -> Usage:
        usage: Usage = getattr(self._thread_local, "usage", Usage())
        return usage

    def add_usage(self, usage: Usage) -> None:
        """Add to the usage of the calling thread."""
        self._thread_local.usage = self.usage.plus(usage)


PixelRule = Literal["processor", "released", "padded"]
"""Image preprocessing for a dual encoder: `processor` as in the checkpoint's processor; `released` as in CLIP's
released code; `padded` as in HPSv2, with the whole image on a black square.
"""


Measure = Literal["cosine", "logit", "match", "reward"]
"""Meaning of a similarity: `cosine` of two embeddings; `logit`, the cosine with the model's learned scale and bias;
`match`, the probability that image and text belong together; `reward`, learned from human preferences.
"""


Compares = Literal["prompt", "caption", "source", "change", "edit"]
"""The two sides of a comparison: an image and its `prompt`, or the `caption` of an edit's intended result; an edited
image and its `source`; the `change` from source to edited image and the change between their captions; or an `edit`
(source and edited image in one question) and the prompt.
"""


class TextFeatures(NamedTuple):
    """Unit-length text embeddings, and whether each text was longer than the model's context."""

    features: "torch.Tensor"
    """Embeddings (n, width), float32."""
    truncated: list[bool]


class TextEmbedder(Protocol):
    """Model that serves the call `embedding(texts) -> vectors`: similar texts have similar vectors."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings of the texts; texts longer than the context are cut and reported."""


class Pair(NamedTuple):
    """An image, and the text or the source image that it is compared with.

    If there are a source image and a source text, the change from source image to image is compared with the change
    from source text to text.
    """

    image: int
    """Index of the image among the images of the call."""
    text: str = ""
    source: int | None = None
    """Index of the source image of an edit, if it is part of the comparison."""
    source_text: str = ""


class ComparisonResult(NamedTuple):
    """The result of one comparison."""

    similarity: float
    """Value in the requested measure."""
    truncated: bool
    """True if the text was cut because it was longer than the model's context."""
    ratings: Mapping[str, float] | None = None
    """Components of the similarity by name, if the model reports several."""


class SimilarityModel(ImageModel, Protocol):
    """Model that serves the call `similarity(images, texts) -> number`.

    A dual encoder compares embeddings; a matching model or a reward model reads image and text together.
    """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Prepare one RGB image for `encode`, on the CPU."""

    def compare(
        self, features: Sequence[Any], pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return the similarity of each pair, using one of the measures that the model's family declares."""
