"""The base class of metrics: a chain of stages that ends in a score."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.ablation import Ablation, shuffled_words
from plumbline.operators.metrics.answered import Answered, Scored
from plumbline.operators.metrics.writing import WrittenQuestion

if TYPE_CHECKING:
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


def with_prior(chain: tuple[str, ...], prior: Prior | None) -> tuple[str, ...]:
    """Return the chain with the stage of the prior inserted before the answers; without a prior, the chain itself."""
    place = chain.index("answers")
    return chain if prior is None else (*chain[:place], "priors", *chain[place:])


def direction(metric: str, lower_is_better: Container[str]) -> int:
    """Return 1 if a higher score of the metric is better, and -1 if a lower one is.

    Multiply scores by it before ordering or comparing them; displayed scores stay as the metric returns them.
    """
    return -1 if metric in lower_is_better else 1


class CallEstimate(NamedTuple):
    """Estimated model calls of one prompt, before its questions are written."""

    calls: float
    """Requests to the writer, without repeats for unreadable replies."""
    questions: float
    """Questions; each is one call of the VQA model per image, and one of the entailment model if the metric has one."""


class Evidence(NamedTuple):
    """The input of a score: one image's row and its answered questions."""

    row: Mapping[str, Any]
    """Row of the image in the first table of `scored_from`; it has no error."""
    answered: Sequence[Answered] = ()
    """All questions about the prompt with the answers for this image, if the score reads questions."""


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
        """The ablation if it replaces the images, else None."""
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
        """True if the metric looks at the sources of edited images."""
        return self.views != ("result",)

    def apply_word_order(self, text: str) -> str:
        """Return a text in the form for models: with shuffled words for that ablation, else unchanged."""
        return shuffled_words(text) if self.ablation == "shuffled_words" else text

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
        """True if a lower score is better."""
        return False

    @property
    def score_range(self) -> ScoreRange | None:
        """Lowest and highest possible score; None if scores have no limits, or never come near them.

        Gates use the range as a bound for prompts that were not scored.
        """
        return None

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return the estimated calls of a prompt with this number of content words."""
        return CallEstimate(0, 1)


def repeats_of(metric: Metric) -> int:
    """Return how many times the metric's judge is asked about an image; 1 for metrics without this option."""
    return int(getattr(metric, "repeats", 1))


@runtime_checkable
class PackedMetric(Protocol):
    """A metric that scores by questions that the benchmark ships and lets none be written."""

    def refusal_of_pack(self, choices: Collection[int]) -> str | None:
        """Return why the metric cannot score by shipped questions with these numbers of choices; None if it can."""


@runtime_checkable
class WantingMetric(Protocol):
    """A metric that checks texts written in the image.

    The benchmark ships these texts or they come with the image; otherwise they are those that the prompt names.
    """

    def want(self, prompt: str, texts: Sequence[str]) -> Sequence[WrittenQuestion] | RowError:
        """Return a question for each wanted text, or the error if there are none.

        Without `texts` the prompt is searched.
        """


def takes_questions(metric: Metric) -> bool:
    """Return True if the metric scores by questions or texts that the benchmark ships or that come with an image."""
    return isinstance(metric, PackedMetric | WantingMetric)
