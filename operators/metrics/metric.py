"""The base class of metrics: a chain of stages that ends in a score; and the answers that scores are computed from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.ablation import Ablation, shuffle_words
from plumbline.operators.metrics.writing import WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.metrics.modules import LookResult
    from plumbline.operators.models.vqa_profiles import VqaProfile


Prior = Literal["blank_image"]
"""Removal of a model's bias from its answers. `blank_image`: each choice's likelihood is divided by its likelihood for
a grey image. Language models are calibrated in the same way with an input without content (Zhao et al. 2021, Calibrate
Before Use). No released metric does this."""
View = Literal["result", "source", "edit"]
"""The images that a model sees in one question: the scored image, the source that it was edited from, or both as an
`edit`, source first."""
ScoreRange = tuple[float, float]
"""Lowest and highest score."""
SHARES: ScoreRange = (0.0, 1.0)
Logprobs = tuple[tuple[float, ...], ...]
"""Natural log probabilities of the tokens of each choice, EOS last."""
EXTRA_WORDS = "extra"
"""Id of the last element of metrics that compare words: words in the image that were not wanted."""
NO_QUESTIONS = RowError(
    "no_questions", "no question about the prompt is left to score it by; look at its questions, or lower the threshold"
)


class Answered(NamedTuple):
    """A question with the answer of a model about one image."""

    question: WrittenQuestion
    token_logprobs: Logprobs = ()
    """Empty if the model answered in its own words."""
    reply: str | None = None
    """The model's own words, if it was asked for them."""
    chosen: str | None = None
    """The choice that the reply means."""
    p_entail: float | None = None
    """Probability that the prompt entails the question with its answer, if it was computed."""
    seen: "tuple[LookResult, ...]" = ()
    """Results of the looks, if modules answer the question (operators/metrics/modules.py)."""
    prior: Logprobs = ()
    """Like `token_logprobs`, for a blank image, if the metric removes the prior."""


class Evidence(NamedTuple):
    """The input of a score: one image's row and its answered questions."""

    row: Mapping[str, Any]
    """Row of the image in the first table of `scored_from`; it has no error."""
    answered: Sequence[Answered] = ()
    """All questions about the prompt with the answers for this image, if the score reads questions."""


class Element(NamedTuple):
    """The part of one question in a score (operators/base/schemas.py, ELEMENT)."""

    question_id: str
    text: str
    span: str | None
    start: int | None
    end: int | None
    wanted: str | None
    given: str | None
    score: float | None
    """Between 0 and 1; null if the question was left out."""


class Rating(NamedTuple):
    """One number of a judge's verdict."""

    name: str
    """Name of the rated property."""
    value: float


class Verdict(NamedTuple):
    ratings: tuple[Rating, ...]
    rationale: str


class Scored(NamedTuple):
    """The score of an image with its elements, or its error."""

    score: float | None
    elements: tuple[Element, ...] | None = None
    """Null for metrics that ask only once."""
    error: RowError | None = None
    n_questions: int | None = None
    """Number of questions in the score; null for metrics without questions."""
    truncated: bool = False
    """True if the model read only the beginning of the text."""
    ratings: tuple[Rating, ...] | None = None
    """Numbers of the judge's verdict; null for metrics without a judge."""
    rationale: str | None = None
    """Explanation of the judge."""


class CallEstimate(NamedTuple):
    """Estimated model calls of one prompt, before its questions are written."""

    calls: float
    """Requests to the writer, without repeats for unreadable replies."""
    questions: float
    """Questions; each is one call of the VQA model per image, and one of the entailment model if the metric has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(BoundsChecked, ABC):
    """A metric: its options, its questions to the models of each stage, and its arithmetic.

    A stage may require further methods: the protocol in its `needs` (operators/stages).
    """

    kind: str
    ablation: Ablation | None = None
    """Input that the metric is denied, to measure how much it depends on it (operators/metrics/ablation.py). The score
    is then not the metric's."""
    story: ClassVar[str] = ""
    """Description for newcomers that completes a sentence starting with the metric's name."""
    role_keys: ClassVar[tuple[str, ...]] = ("model",)
    """Options that name the role of a model."""
    final_stage: ClassVar[str] = "scores"
    """Last stage of the chain. Text-only chains stop before the image stages."""

    def key_of(self, name: str) -> str:
        """Return an option's name in messages, such as `gecko threshold`."""
        return f"{self.kind} {name}"

    @property
    @abstractmethod
    def chain(self) -> tuple[str, ...]:
        """Names of the stages in the order of operators/stages/table.py; the last one is `final_stage`."""

    @property
    def scored_from(self) -> tuple[str, ...]:
        """Stages that the scores read: first the stage with a row for each image, then the stages of its prompt."""
        return self.chain[-2:-1]

    @property
    def roles(self) -> Mapping[str, str]:
        """Roles of the models by option: `{"model": "vqa"}`."""
        return {key: getattr(self, key) for key in self.role_keys}

    @property
    def image_ablation(self) -> Ablation | None:
        return None if self.ablation == "shuffled_words" else self.ablation

    @property
    def ranks(self) -> bool:
        """True if one score can be better than another; False for metrics that only describe images."""
        return True

    @property
    def views(self) -> tuple[View, ...]:
        """Views of the images that the metric asks about; a request names its view by its index here (Request.view)."""
        return ("result",)

    @property
    def captions(self) -> tuple[str, ...]:
        """Columns with captions of edits that the metric reads (image_rows.CAPTIONS)."""
        return ()

    @property
    def needs_sources(self) -> bool:
        return self.views != ("result",)

    def apply_word_order(self, text: str) -> str:
        """Return a text in the form for models: with shuffled words for that ablation, else unchanged."""
        return shuffle_words(text) if self.ablation == "shuffled_words" else text

    @abstractmethod
    def scoring(self) -> Mapping[str, Any]:
        """Return all options that decide the score, given the tables that it reads."""

    @abstractmethod
    def score(self, evidence: Evidence) -> Scored: ...

    def with_model_defaults(self, profile_of: Callable[[str], "VqaProfile"]) -> Self:
        """Return the metric with open options filled in. `profile_of` returns the VQA profile of a role's model."""
        return self

    @property
    def prefers_lower(self) -> bool:
        return False

    @property
    def score_range(self) -> ScoreRange | None:
        """Lowest and highest possible score, for gates; None if scores have no limits, or never come near them."""
        return None

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return the estimated calls of a prompt with this number of content words."""
        return CallEstimate(0, 1)


@runtime_checkable
class PackedMetric(Protocol):
    """A metric that scores by questions that the benchmark ships; no model writes any."""

    def refusal_of_pack(self, choices: Collection[int]) -> str | None:
        """Return why the metric cannot score by shipped questions with these numbers of choices; None if it can."""


@runtime_checkable
class WantingMetric(Protocol):
    """A metric that checks texts in the image: from the benchmark, from the caller, or else from the prompt."""

    def want(self, prompt: str, texts: Sequence[str]) -> Sequence[WrittenQuestion] | RowError:
        """Return a question for each wanted text, or for those in the prompt if none are given, or an error."""


def takes_questions(metric: Metric) -> bool:
    """Return True if the metric scores by questions or texts that the benchmark ships or that come with an image."""
    return isinstance(metric, PackedMetric | WantingMetric)


def insert_prior(chain: tuple[str, ...], prior: Prior | None) -> tuple[str, ...]:
    """Return the chain with the stage of the prior inserted before the answers; without a prior, the chain itself."""
    index = chain.index("answers")
    return chain if prior is None else (*chain[:index], "priors", *chain[index:])


def direction(metric: str, lower_is_better: Container[str]) -> int:
    """Return 1 if a higher score of the metric is better, and -1 if a lower one is.

    Multiply scores by it before ordering or comparing them; displayed scores stay as the metric returns them.
    """
    return -1 if metric in lower_is_better else 1


def repeats_of(metric: Metric) -> int:
    """Return how many times the metric's judge is asked about an image; 1 for metrics without this option."""
    return int(getattr(metric, "repeats", 1))


def element(answered: Answered, *, given: str | None, score: float | None) -> Element:
    question = answered.question
    return Element(
        question.question_id, question.text, question.span, question.start, question.end, question.answer, given, score
    )


def mean_scored(elements: Sequence[Element]) -> Scored:
    """Return the mean over the elements with a score, or an error if no element has one."""
    scores = [element.score for element in elements if element.score is not None]
    if not scores:
        return Scored(None, tuple(elements), NO_QUESTIONS, n_questions=0)
    return Scored(math.fsum(scores) / len(scores), tuple(elements), n_questions=len(scores))


def mean_over_images(scored: Sequence[Scored], each: str = "Image") -> Scored:
    """Return the score of a row with several images: the mean over the images, also of each question and rating.

    Videos are scored by their frames in this way (vqascore_genai_bench.txt, sec. 6). If an image has an error, the row
    has it too. The rationale calls an image `each`.
    """
    first = scored[0]
    if len(scored) == 1:
        return first
    failed = next((image for image in scored if image.error is not None), None)
    if failed is not None:
        return failed
    by_rating: dict[str, list[float]] = {}
    for rating in (rating for image in scored for rating in image.ratings or ()):
        by_rating.setdefault(rating.name, []).append(rating.value)
    ratings = tuple(Rating(name, math.fsum(values) / len(values)) for name, values in by_rating.items())
    rationale = " ".join(f"{each} {number}: {image.rationale or ''}" for number, image in enumerate(scored, 1))
    questions = zip(*(image.elements or () for image in scored), strict=True)
    return first._replace(
        score=math.fsum(image.score or 0.0 for image in scored) / len(scored),
        elements=None if first.elements is None else tuple(map(_mean_element, questions)),
        truncated=any(image.truncated for image in scored),
        ratings=None if first.ratings is None else ratings,
        rationale=None if first.rationale is None else rationale,
    )


def _mean_element(images: Sequence[Element]) -> Element:
    """Return a question's mean over the images, with the answer if it is the same for all of them."""
    scores = [element.score for element in images if element.score is not None]
    given = {element.given for element in images}
    return images[0]._replace(
        score=math.fsum(scores) / len(scores) if scores else None, given=given.pop() if len(given) == 1 else None
    )


def incomplete(stage: str, what: str) -> RowError:
    """Return the error of a row whose inputs do not match, because a stage's cell was computed from other questions."""
    message = f"the cell of {stage} {what}; run again; if it stays, delete the folder {stage}/ of the store"
    return RowError("incomplete_cell", message, retryable=True)
