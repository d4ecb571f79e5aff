"""Base class of metrics, which are chains of stages that end in a score, and types for what a score is based on."""

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
    from plumbline.operators.metrics.modules import QueryResult
    from plumbline.operators.models.vqa_profiles import VqaProfile


Prior = Literal["blank_image"]
"""Method that removes a model's bias from its answers. `blank_image` divides each choice's likelihood by its likelihood
for a grey image. Language models are calibrated in the same way with a content-free input (Zhao et al. 2021, Calibrate
Before Use). No released metric does this.
"""
View = Literal["result", "source", "edit", "pair", "swapped_pair", "edit_pair", "swapped_edit_pair"]
"""The images that a model sees in one question: `result` is the scored image, `source` is the image before the
edit, and `edit` is both, source first. `pair` is another generator's image followed by the scored image, and
`swapped_pair` is the scored image followed by the other one. `edit_pair` and `swapped_edit_pair` are these views with
the image before the edit in front.
"""
SOURCE_VIEWS: frozenset[View] = frozenset({"source", "edit", "edit_pair", "swapped_edit_pair"})
"""Views with the source of an edit."""
DOUBLE_VIEWS: frozenset[View] = frozenset({"edit", "pair", "swapped_pair"})
"""Views with two images."""
TRIPLE_VIEWS: frozenset[View] = frozenset({"edit_pair", "swapped_edit_pair"})
"""Views with three images."""
ScoreRange = tuple[float, float]
"""Lowest and highest score."""
SHARE_RANGE: ScoreRange = (0.0, 1.0)
Logprobs = tuple[tuple[float, ...], ...]
"""Natural log probabilities of each choice's tokens, EOS last."""
EXTRA_WORDS_ID = "extra"
"""Id of the last element in metrics that compare words: words in the image that should not be there."""
NO_QUESTIONS_ERROR = RowError(
    "no_questions",
    "no question about the prompt counts towards the score; check the questions, or lower the threshold",
)


class PairSelection(NamedTuple):
    """Selection of the generators whose images a pairwise metric compares with each other."""

    pairs: Literal["all", "baseline", "neighbours", "active"]
    """`all`: every two generators; `baseline`: each generator with `baseline`; `neighbours`: generators at most
    `neighbours` places apart in the ranking by the metric `ranked_by`; `active`: every two generators until an adaptive
    sweep has decided which one wins more often.
    """
    baseline: str | None
    ranked_by: str | None
    neighbours: int


class Answered(NamedTuple):
    """A question about an image with a model's answer: likelihoods, a reply, or results of queries."""

    question: WrittenQuestion
    token_logprobs: Logprobs = ()
    """Log probabilities of the choices' tokens; empty if the model answered in its own words."""
    reply: str | None = None
    """The model's answer in its own words, if the metric asked for one."""
    chosen: str | None = None
    """The choice that corresponds to the reply."""
    p_entail: float | None = None
    """Probability that the prompt entails the question and its answer, if it was computed."""
    query_results: "tuple[QueryResult, ...]" = ()
    """Results of the queries, if the question is answered by modules (operators/metrics/modules.py)."""
    prior: Logprobs = ()
    """Log probabilities of the choices' tokens for a blank image, if the metric removes the prior."""


class Evidence(NamedTuple):
    """The data that a score is based on: one image's row and the answered questions about the image."""

    row: Mapping[str, Any]
    """The image's row in the table of the first stage in `scored_from`; the row has no error."""
    answered: Sequence[Answered] = ()
    """All questions about the prompt with the answers for this image, if the score is based on questions."""


class Element(NamedTuple):
    """Contribution of one question to a score (schema ELEMENT): the expected and given answers, and a score."""

    question_id: str
    text: str
    span: str | None
    start: int | None
    end: int | None
    wanted: str | None
    given: str | None
    score: float | None
    """Score between 0 and 1; None if the question was left out."""


class Rating(NamedTuple):
    """A number in a judge's verdict, with the name of the property that it rates."""

    name: str
    """Name of the rated property."""
    value: float


class Verdict(NamedTuple):
    ratings: tuple[Rating, ...]
    rationale: str


class Scored(NamedTuple):
    """Result of scoring an image: the score with details such as its elements, or an error instead."""

    score: float | None
    elements: tuple[Element, ...] | None = None
    """The questions' contributions; None for metrics that ask only one question."""
    error: RowError | None = None
    n_questions: int | None = None
    """Number of questions that count in the score; None for metrics without questions."""
    truncated: bool = False
    """True if the text was too long and the model read only its beginning."""
    ratings: tuple[Rating, ...] | None = None
    """The numbers in the judge's verdict; None for metrics without a judge."""
    rationale: str | None = None
    """The judge's explanation."""


class CallEstimate(NamedTuple):
    """Estimated number of model calls for one prompt, before its questions are written."""

    calls: float
    """Number of requests to the writer, not counting retries after unreadable replies."""
    questions: float
    """Number of questions. Each question costs one call to the VQA model per image and, if the metric has an entailment
    model, one call to the entailment model.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(BoundsChecked, ABC):
    """Base class of metrics: the options, the questions for the models of each stage, and the arithmetic of the score.

    A stage may require further methods, which its `metric_type` declares (operators/stages).
    """

    kind: str
    ablation: Ablation | None = None
    """Input that is withheld to measure how much the metric depends on it (operators/metrics/ablation.py). The result
    is then not a valid score of the metric.
    """
    story: ClassVar[str] = ""
    """Description for newcomers. It completes a sentence that starts with the metric's name."""
    role_keys: ClassVar[tuple[str, ...]] = ("model",)
    """Options whose values are roles of models."""
    final_stage: ClassVar[str] = "scores"
    """Last stage of the chain. Text-only chains stop before the image stages."""

    def format_key(self, name: str) -> str:
        """Return an option's full name for messages, such as `gecko threshold`."""
        return f"{self.kind} {name}"

    @property
    @abstractmethod
    def chain(self) -> tuple[str, ...]:
        """Names of the stages in the order of operators/stages/table.py; the last one is `final_stage`."""

    @property
    def scored_from(self) -> tuple[str, ...]:
        """Stages whose tables determine the score.

        The first stage's table has a row for each image. The other tables have the questions about the prompt.
        """
        return self.chain[-2:-1]

    @property
    def roles(self) -> Mapping[str, str]:
        """Roles of the metric's models, by the option that sets the role: `{"model": "vqa"}`."""
        return {key: getattr(self, key) for key in self.role_keys}

    @property
    def json_role(self) -> str | None:
        """Option in `roles` whose model replies as JSON that follows a schema; None if no model does."""
        return None

    @property
    def image_ablation(self) -> Ablation | None:
        """The metric's ablation if this ablation replaces images, otherwise None."""
        return None if self.ablation == "shuffled_words" else self.ablation

    @property
    def ranks(self) -> bool:
        """Return True if one score can be better than another; False for metrics that only describe images."""
        return True

    @property
    def reads_prompt(self) -> bool:
        """Return True if a score depends on the prompt; False for metrics that only rate how an image looks."""
        return True

    @property
    def views(self) -> tuple[View, ...]:
        """Views of the images that the metric asks about. Requests refer to a view by its index here (Request.view)."""
        return ("result",)

    @property
    def captions(self) -> tuple[str, ...]:
        """The edit-caption columns that the metric uses, a subset of CAPTION_COLUMNS; usually none."""
        return ()

    @property
    def pair_selection(self) -> PairSelection | None:
        """Return which generators' images to compare; None for metrics that look at each image alone."""
        return None

    @property
    def needs_sources(self) -> bool:
        return not SOURCE_VIEWS.isdisjoint(self.views)

    def apply_word_order(self, text: str) -> str:
        """Return the text as models receive it: unchanged or, under the ablation `shuffled_words`, shuffled."""
        return shuffle_words(text) if self.ablation == "shuffled_words" else text

    @abstractmethod
    def list_score_options(self) -> Mapping[str, Any]:
        """Return a mapping of all options that determine how the score is computed from the input tables."""

    @abstractmethod
    def score(self, evidence: Evidence) -> Scored: ...

    def complete_options(self, profile_of: Callable[[str], "VqaProfile"]) -> Self:
        """Return the metric with unset options filled in. `profile_of` returns the VQA profile of a role's model."""
        return self

    @property
    def prefers_lower(self) -> bool:
        return False

    @property
    def score_range(self) -> ScoreRange | None:
        """Lowest and highest possible score, for gates; None if scores are unbounded or never get close to a bound."""
        return None

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return an estimate of the model calls for a prompt with this number of content words."""
        return CallEstimate(0, 1)


@runtime_checkable
class PackedMetric(Protocol):
    """Protocol for metrics whose questions come with the benchmark and are not written by a model."""

    def explain_pack_refusal(self, choices: Collection[int]) -> str | None:
        """Return the reason why the metric cannot use questions with these numbers of choices; None if it can."""


@runtime_checkable
class TextInImageMetric(Protocol):
    """Protocol for metrics that check if an image shows certain texts, given by the benchmark, caller or prompt."""

    def make_questions(self, prompt: str, texts: Sequence[str]) -> Sequence[WrittenQuestion] | RowError:
        """Return a question for each given text or, if there are none, for each text in the prompt.

        If no question can be asked, an error is returned instead.
        """


def takes_questions(metric: Metric) -> bool:
    """Return True if the metric uses questions or texts that are shipped with the benchmark or sent with an image."""
    return isinstance(metric, PackedMetric | TextInImageMetric)


def compares_actively(metric: Metric) -> bool:
    """Return True if the metric compares generators only until an adaptive sweep has decided which one is better."""
    return metric.pair_selection is not None and metric.pair_selection.pairs == "active"


def insert_prior(chain: tuple[str, ...], prior: Prior | None) -> tuple[str, ...]:
    """Return the chain with the stage `priors` inserted before `answers`; without a prior, return it unchanged."""
    index = chain.index("answers")
    return chain if prior is None else (*chain[:index], "priors", *chain[index:])


def get_direction(metric: str, lower_is_better: Container[str]) -> int:
    """Return 1 if higher scores of the metric are better, and -1 if lower scores are better.

    Multiply scores by this before sorting or comparing them. Scores are displayed as the metric returns them.
    """
    return -1 if metric in lower_is_better else 1


def count_repeats(metric: Metric) -> int:
    """Return how many times the metric's judge is asked about each image; 1 for metrics without this option."""
    return int(getattr(metric, "repeats", 1))


def make_element(answered: Answered, *, given: str | None, score: float | None) -> Element:
    question = answered.question
    return Element(
        question.question_id, question.text, question.span, question.start, question.end, question.answer, given, score
    )


def average_elements(elements: Sequence[Element]) -> Scored:
    """Return the mean of the elements that have a score, or an error if no element has a score."""
    scores = [element.score for element in elements if element.score is not None]
    if not scores:
        return Scored(None, tuple(elements), NO_QUESTIONS_ERROR, n_questions=0)
    return Scored(math.fsum(scores) / len(scores), tuple(elements), n_questions=len(scores))


def average_images(scored: Sequence[Scored], each: str = "Image") -> Scored:
    """Return the score of a row with several images: the mean over its images, also for each question and rating.

    The score of a video is the mean over its frames (vqascore_genai_bench.txt, sec. 6). If an image could not be
    scored, its error is returned instead. In the rationale, `each` precedes the number of an image.
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
        elements=None if first.elements is None else tuple(map(_average_element, questions)),
        truncated=any(image.truncated for image in scored),
        ratings=None if first.ratings is None else ratings,
        rationale=None if first.rationale is None else rationale,
    )


def _average_element(images: Sequence[Element]) -> Element:
    """Return a question's element with the mean score over the images, and their answer if they all agree."""
    scores = [element.score for element in images if element.score is not None]
    given = {element.given for element in images}
    return images[0]._replace(
        score=math.fsum(scores) / len(scores) if scores else None, given=given.pop() if len(given) == 1 else None
    )


def make_incomplete_cell_error(stage: str, what: str) -> RowError:
    """Return the error for a row that has no score because a stage's cell was computed from other questions."""
    message = f"the cell of {stage} {what}; run again; if the error persists, delete the folder {stage}/ of the store"
    return RowError("incomplete_cell", message, retryable=True)
