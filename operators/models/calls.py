"""The model calls that metrics are made of, as protocols a backend implements and an operator relies on."""

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
    ends: tuple[int, ...] = ()
    """Tokens that end the reply beside the model's own, where its weights run here."""
    system: str | None = None
    """What a service is told before the conversation; a model whose weights run here has it above the first message."""
    image_at: int = 0
    """Before which character of the first message's text a service is shown the images; a model whose weights run here
    sees them first."""
    view: int = 0
    """Which of its metric's views it is about; no model reads it."""

    @property
    def spoken(self) -> tuple[Message, ...]:
        """The messages for a model that takes no system message with each request."""
        if self.system is None:
            return self.messages
        first, *others = self.messages
        return (first._replace(text=f"{self.system}\n\n{first.text}"), *others)


LONGEST_REPLY = 32
"""Tokens of an answer to a question in the model's own words."""


class Generation(NamedTuple):
    """A model's reply."""

    text: str
    complete: bool
    """False where it was cut at max_tokens."""
    usage: Usage
    ids: tuple[int, ...] = ()
    """Its tokens, the one that ended it included, where the model's weights run here."""

    @property
    def took(self) -> Usage:
        """The usage, with whether the reply was cut."""
        return self.usage._replace(cut=int(not self.complete))


class GenerateModel(Protocol):
    """`generate(conversations) -> text`."""

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none; may be called from several threads at once."""


class ImageModel(Protocol):
    """What models that see have in common. What `preprocess` and `encode` return is the backend's own matter, which it
    gets back in its next call.
    """

    side_by_side: bool
    """Whether it batches by itself all that several threads ask: it is then to be asked as much at once as there is."""

    def preprocess(self, image: Image.Image) -> Any:
        """One RGB image made ready for `encode`, on the CPU."""

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Preprocessed images as what the next call reads of them, computed once for each."""


class SeveralImagesModel(ImageModel, Protocol):
    """A model that is shown several images in one question."""

    def preprocess_several(self, images: Sequence[Image.Image]) -> Any:
        """RGB images that stand one after another before the text, made ready for `encode` as one."""


class ImageRequest(NamedTuple):
    """A conversation about one image, or several that go as one, which stand before its first message."""

    image: int
    """Index into the images of the call."""
    request: Request


class ImageGenerateModel(ImageModel, Protocol):
    """`generate_from_images(images, conversations) -> text`: captioners and chat models that see."""

    def generate_from_images(
        self, features: Sequence[Any], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """The reply to each request, or why there is none."""


class Region(NamedTuple):
    """What is seen at a place of an image."""

    label: str
    x1: int
    """Of its box, in pixels of the image as it was given, from the left; y from the top."""
    y1: int
    x2: int
    y2: int


class RegionModel(ImageModel, Protocol):
    """`regions(images) -> what is seen where`: models that name or describe an image's parts."""

    def regions(self, features: Sequence[Any]) -> Sequence[list[Region] | RowError]:
        """The regions of each image, in the order in which the model tells them; an image may have none."""


class Wanted(NamedTuple):
    """Something to be found in one image."""

    image: int
    """Index into the images of the call."""
    phrase: str
    box_threshold: float
    """A box must score more."""
    text_threshold: float
    """A word of the phrase must score more to be in a box's label, where the model scores them one by one."""


class Box(NamedTuple):
    """Something found in an image; pixels of the image as it was given, from its upper left corner."""

    label: str
    score: float
    x1: float
    y1: float
    x2: float
    y2: float


class DetectionModel(ImageModel, Protocol):
    """`detect(images, phrases) -> boxes`: open-vocabulary detectors."""

    def detect(self, features: Sequence[Any], wanted: Sequence[Wanted]) -> Sequence[list[Box] | RowError]:
        """What is found of each phrase, in the model's order; nothing where it is not there."""


class ReadingModel(ImageModel, Protocol):
    """`ocr(images) -> text`: what is written in an image."""

    def ocr(self, features: Sequence[Any]) -> Sequence[str | RowError]:
        """The text in each image, a line for each of its lines; empty where there is none."""


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


class LikelihoodModel(ImageModel, Protocol):
    """`likelihood(images, questions with candidate answers) -> log-probability of each answer`."""

    @property
    def usage(self) -> Usage:
        """What the calls of this thread have taken since it was loaded."""

    def likelihood(
        self, features: Sequence[Any], questions: Sequence[Question]
    ) -> Sequence[list[list[float]] | RowError]:
        """Natural-log probability of every token of every choice of every question, EOS included; or why not."""

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> Sequence[str | RowError]:
        """The model's own answer to every question, in its likeliest words; the choices are not shown to it."""


PixelRule = Literal["processor", "released", "padded"]
"""How an image is made a dual encoder's input: as its checkpoint's processor does; as CLIP's released code did; or
whole, on a black square, as HPSv2's does."""


Measure = Literal["cosine", "logit", "match", "reward"]
"""What the number of a comparison is: `cosine` of two embeddings; `logit`, the cosine in the scale that the model
learnt; `match`, the probability that image and text belong together; `reward`, learnt of people's choices."""


Compares = Literal["prompt", "caption", "source", "change", "edit"]
"""What is compared: an image with its `prompt`, or with the `caption` of what an edit was to make; an edited image with
its `source`; the `change` from source to edited image with that from the source's caption to the target's; or with the
prompt an `edit`, which is source and edited image in one question."""


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
    """One image and what it is compared with: a text, a source, or of both the change."""

    image: int
    """Index into the images of the call."""
    text: str = ""
    source: int | None = None
    """Index of the image that it was edited from, where that counts."""
    source_text: str = ""


class Compared(NamedTuple):
    """How well an image fits a text."""

    similarity: float
    """In the measure that was asked for."""
    truncated: bool
    """Whether the text was longer than the model's context, and cut."""
    ratings: Mapping[str, float] | None = None
    """What the number is made of, by name, where a model gives several."""


class SimilarityModel(ImageModel, Protocol):
    """`similarity(images, texts) -> number`, in two steps so that each image is encoded once.

    A dual encoder compares embeddings, a matching model or a reward model reads image and text together.
    """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """One RGB image made ready for `encode`, on the CPU."""

    def compare(self, features: Sequence[Any], pairs: Sequence[Pair], measure: Measure = "cosine") -> list[Compared]:
        """How well each pair fits, in one of the measures that its family names."""


class DrawingSettings(NamedTuple):
    """How pictures are to be drawn; what is null is left to the model."""

    cfg: float | None = None
    """How strongly the prompt guides."""
    steps: int | None = None
    size: tuple[int, int] | None = None
    """Width and height in pixels."""
    sampler: str | None = None
    """The class of the scheduler."""
    negative_prompt: str = ""


class DrawingRequest(NamedTuple):
    """One picture that is wanted."""

    prompt: str
    seed: int
    """Of all its noise: it alone decides it, whatever is drawn beside."""


class Drawn(NamedTuple):
    """A picture, encoded, with the settings that it was drawn by; None where the model does not tell."""

    encoded: bytes
    cfg: float | None = None
    steps: int | None = None
    seed: int | None = None
    sampler: str | None = None


class DrawingModel(Protocol):
    """`draw(prompts) -> pictures`: image generators."""

    checkpoint: str
    """What it draws by, as it was named."""
    revision: str | None
    """Its hub commit, the digest of its files, or a service's label."""

    def draw(self, requests: Sequence[DrawingRequest], settings: DrawingSettings) -> list[Drawn | RowError]:
        """The picture of each request, or why there is none."""
