"""The calls that stages make of models, as protocols that model classes implement."""

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
    """Maximum length of the reply; a longer reply is cut."""
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end the reply; it does not contain them."""
    schema: str | None = None
    """JSON schema, as text, of the reply, if the backend can enforce one."""
    ends: tuple[int, ...] = ()
    """Token ids that end the reply, in addition to the model's own, for a model whose weights run here."""
    system: str | None = None
    """System message. A model whose weights run here reads it at the start of the first message."""
    image_at: int = 0
    """Index of the character in the first message before which a service is shown the images; a model whose weights
    run here always sees them first.
    """
    view: int = 0
    """Index of the metric's view that the request is about; it chooses the images, and models ignore it."""

    @property
    def messages_with_system(self) -> tuple[Message, ...]:
        """The messages, the first one beginning with the system message."""
        if self.system is None:
            return self.messages
        first, *others = self.messages
        return (first._replace(text=f"{self.system}\n\n{first.text}"), *others)


MAX_ANSWER_TOKENS = 32
"""Maximum length of an answer in the model's own words."""


class Generation(NamedTuple):
    """A model's reply."""

    text: str
    complete: bool
    """False if the reply was cut at max_tokens."""
    usage: Usage
    ids: tuple[int, ...] = ()
    """The reply's tokens, including its end, if the model's weights run here."""

    @property
    def usage_and_cut(self) -> Usage:
        """The usage, which also counts the reply if it was cut."""
        return self.usage._replace(cut=int(not self.complete))


class GenerateModel(Protocol):
    """`generate(conversations) -> text`."""

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """Return the reply to each request, or an error. May be called from several threads at once."""


class ImageModel(Protocol):
    """The methods that all models of images have.

    What `preprocess` and `encode` return depends on the model, and only its own next call reads it.
    """

    side_by_side: bool
    """True if the model batches the requests of several threads by itself, and should get many at once."""

    def preprocess(self, image: Image.Image) -> Any:
        """Prepare one RGB image for `encode`, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Compute the features of preprocessed images that the next call reads, once for each image."""


class SeveralImagesModel(ImageModel, Protocol):
    """A model that can see several images in one question."""

    def preprocess_several(self, images: Sequence[Image.Image]) -> Any:
        """Prepare RGB images, which come one after another before the text, as a single input of `encode`."""


class ImageRequest(NamedTuple):
    """A conversation about one image, or several preprocessed together, which come before its first message."""

    image: int
    """Index into the images of the call."""
    request: Request


class ImageGenerateModel(ImageModel, Protocol):
    """`generate_from_images(images, conversations) -> text`: captioners and chat models that see."""

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
    """`regions(images) -> labelled boxes`: models that name or describe the parts of an image."""

    def regions(self, features: Sequence[Any]) -> Sequence[list[Region] | RowError]:
        """Return the regions of each image in the model's order; an image may have none."""


class DetectionRequest(NamedTuple):
    """A phrase to be found in one image."""

    image: int
    """Index into the images of the call."""
    phrase: str
    box_threshold: float
    """Boxes need a higher score than this."""
    text_threshold: float
    """If the model scores each word of a phrase: words with a higher score than this are in a box's label."""


class Box(NamedTuple):
    """An object in an image, in pixels of the original image; x from the left, y from the top."""

    label: str
    score: float
    x1: float
    y1: float
    x2: float
    y2: float


class DetectionModel(ImageModel, Protocol):
    """`detect(images, phrases) -> boxes`: open-vocabulary detectors."""

    def detect(self, features: Sequence[Any], requests: Sequence[DetectionRequest]) -> Sequence[list[Box] | RowError]:
        """Return the boxes of each phrase in the model's order; an empty list if the phrase is not in the image."""


class ReadingModel(ImageModel, Protocol):
    """`ocr(images) -> text`: models that read the text in an image."""

    def ocr(self, features: Sequence[Any]) -> Sequence[str | RowError]:
        """Return the text in each image, line by line; an empty string if an image has no text."""


class EntailmentModel(Protocol):
    """`entailment(premises, hypotheses) -> probability`."""

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the probability of entailment for each (premise, hypothesis) pair."""


class Question(NamedTuple):
    """One question about one image, with the candidate answers to be scored."""

    image: int
    """Index into the images of the call."""
    text: str
    choices: tuple[str, ...]


class LikelihoodModel(ImageModel, Protocol):
    """`likelihood(images, questions with candidate answers) -> log-probability of each answer`."""

    @property
    def usage(self) -> Usage:
        """Usage of this thread's calls since the model was loaded."""

    def likelihood(
        self, features: Sequence[Any], questions: Sequence[Question]
    ) -> Sequence[list[list[float]] | RowError]:
        """Return the natural-log probability of every token of every choice, its end included, or an error."""

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> Sequence[str | RowError]:
        """Return the model's own likeliest answer to every question; the choices are not shown to it."""


class ThreadUsage:
    """The usage of a model that several threads call: each thread sees only its own."""

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
"""Preparation of an image for a dual encoder: `processor` as the checkpoint's processor does it, `released` as CLIP's
released code does, or `padded`: the whole image on a black square, as in HPSv2.
"""


Measure = Literal["cosine", "logit", "match", "reward"]
"""Meaning of a similarity: `cosine` of two embeddings; `logit`, the cosine in the scale that the model learnt; `match`,
the probability that image and text belong together; `reward`, learnt from human preferences.
"""


Compares = Literal["prompt", "caption", "source", "change", "edit"]
"""An image is compared with its `prompt`, or with the `caption` of an edit's intended result; an edited image with its
`source`; the `change` from source to edited image with the change between their captions; or an `edit` (source and
edited image in one question) with the prompt.
"""


class TextFeatures(NamedTuple):
    """Unit-length text embeddings, and which texts were longer than the model's context."""

    features: "torch.Tensor"
    """(n, width), float32."""
    truncated: list[bool]


class TextEmbedder(Protocol):
    """`embedding(texts) -> vectors`, which are close if the texts have similar meanings."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings of the texts; texts beyond the context are cut and reported."""


class Pair(NamedTuple):
    """An image and its partner in a comparison: a text, a source image, or the change of both."""

    image: int
    """Index into the images of the call."""
    text: str = ""
    source: int | None = None
    """Index of the source image of an edit, if it is compared."""
    source_text: str = ""


class Compared(NamedTuple):
    """The result of one comparison."""

    similarity: float
    """Value in the requested measure."""
    truncated: bool
    """True if the text was longer than the model's context, and cut."""
    ratings: Mapping[str, float] | None = None
    """The parts of the similarity by name, if a model reports several."""


class SimilarityModel(ImageModel, Protocol):
    """`similarity(images, texts) -> number`.

    A dual encoder compares embeddings; a matching model or a reward model reads image and text together.
    """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Prepare one RGB image for `encode`, on the CPU."""

    def compare(self, features: Sequence[Any], pairs: Sequence[Pair], measure: Measure = "cosine") -> list[Compared]:
        """Return the similarity of each pair, in one of the measures that the model's family declares."""
