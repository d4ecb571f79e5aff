"""What a metric is: a chain of stages that ends in a score, and what each of them has to know of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

from plumbline.operators.base.bounds import Checked
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.ablation import Ablation, shuffled_words
from plumbline.operators.metrics.answered import Answered, Scored
from plumbline.operators.metrics.writing import WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile


Prior = Literal["blank_image"]
"""What a model says anyhow, and is taken out of what it says of an image: `blank_image`, its answers about a grey one.
Each choice's likelihood is divided by that about the grey image. So are language models calibrated by an input without
content (Zhao et al. 2021, Calibrate Before Use); no released metric has it."""


View = Literal["result", "source", "edit"]
"""What a model is shown in one question: the image that is scored, the source that it was edited from, or both as an
`edit`, the source first."""


ScoreRange = tuple[float, float]
"""The least and the greatest score."""
SHARES: ScoreRange = (0.0, 1.0)


def with_prior(chain: tuple[str, ...], prior: Prior | None) -> tuple[str, ...]:
    """The chain, with the stage that gives the prior before the answers."""
    place = chain.index("answers")
    return chain if prior is None else (*chain[:place], "priors", *chain[place:])


def direction(metric: str, falling: Container[str]) -> int:
    """1 where a higher score by the metric is better, and -1 by those `falling`, where a lower one is.

    Whatever orders by scores, or says better or worse, multiplies by it; what is shown stays as the metric gives it.
    """
    return -1 if metric in falling else 1


class Expected(NamedTuple):
    """What one prompt will take, as far as that is known before its questions are written."""

    calls: float
    """Requests to the writer; those that are asked again because their reply could not be read come on top."""
    questions: float
    """Each a call of the VQA model for every image, and of the entailment model where there is one."""


class Evidence(NamedTuple):
    """What the score of one image follows from."""

    row: Mapping[str, Any]
    """The image's row of the first table that the score reads; it has no error."""
    answered: Sequence[Answered] = ()
    """Where the score reads questions: every question about its prompt, with what was answered about the image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(Checked, ABC):
    """A metric's options, what it asks of each stage of its chain, and its arithmetic.

    A stage may need more than stands here: what it `needs` (operators/stages).
    """

    kind: str
    ablation: Ablation | None = None
    """What it is denied, to see how much it needs that (operators/metrics/ablation.py); the score is not a metric's
    then."""
    story: ClassVar[str] = ""
    """What it does, for a newcomer; completes a sentence that begins with its name."""

    role_keys: ClassVar[tuple[str, ...]] = ("model",)
    """Its keys that name a role among the sweep's models."""
    ends: ClassVar[str] = "scores"
    """The last stage of its chain; what only has texts written ends before any image is looked at."""

    def key_of(self, name: str) -> str:
        """What an option is called in messages: `gecko threshold`."""
        return f"{self.kind} {name}"

    @property
    @abstractmethod
    def chain(self) -> tuple[str, ...]:
        """The names of its stages, in the order of operators/stages/table.py; the last one is what it `ends` in."""

    @property
    def scored_from(self) -> tuple[str, ...]:
        """The stages that its scores read: first the one with a row for every image, then those of its prompt."""
        return self.chain[-2:-1]

    @property
    def roles(self) -> Mapping[str, str]:
        """The role, among the sweep's models, that each of its keys names: `{"model": "vqa"}`."""
        return {key: getattr(self, key) for key in self.role_keys}

    @property
    def shown(self) -> Ablation | None:
        """What its models see in place of the images, where that is something else."""
        return None if self.ablation == "shuffled_words" else self.ablation

    @property
    def ranks(self) -> bool:
        """Whether one score is better than another; what only says how images are, ranks nothing."""
        return True

    @property
    def views(self) -> tuple[View, ...]:
        """What it looks at; its programs name the view that a request is about by its place here (Request.view)."""
        return ("result",)

    @property
    def captions(self) -> tuple[str, ...]:
        """Which columns with captions of edits it reads (image_rows.CAPTIONS)."""
        return ()

    @property
    def needs_sources(self) -> bool:
        """Whether it looks at the sources of edited images."""
        return self.views != ("result",)

    def worded(self, text: str) -> str:
        """A text that a model is asked, or compares with an image, in the order of words in which it gets it."""
        return shuffled_words(text) if self.ablation == "shuffled_words" else text

    @abstractmethod
    def scoring(self) -> Mapping[str, Any]:
        """All that decides the score once what it reads is there."""

    @abstractmethod
    def score(self, evidence: Evidence) -> Scored:
        """The score of one image."""

    def settled(self, profile_of: Callable[[str], "VqaProfile"]) -> Self:
        """The metric with what it leaves open filled in, given the kind of the VQA model of a role."""
        return self

    @property
    def falling(self) -> bool:
        """Whether a lower score is the better one."""
        return False

    @property
    def score_range(self) -> ScoreRange | None:
        """The least and the greatest score that it can give; None if it has no limits, or none that scores come near.

        A gate counts on it: it asks how far a prompt that was not seen might fall.
        """
        return None

    def expected(self, words: float) -> Expected:
        """What a prompt of so many content words will take."""
        return Expected(0, 1)


def repeats_of(metric: Metric) -> int:
    """How often its judge is asked about an image; once by a metric that does not say so."""
    return int(getattr(metric, "repeats", 1))


@runtime_checkable
class PackedMetric(Protocol):
    """A metric that scores by the questions that the benchmark ships, and has none written."""

    def refusal_of_pack(self, choices: Collection[int]) -> str | None:
        """Why it cannot score by shipped questions, which have these numbers of choices, if it cannot."""


@runtime_checkable
class WantingMetric(Protocol):
    """A metric that wants texts to be written in the image: those that the benchmark ships about a prompt, or that come
    with the image; where there are none, those that it finds in the prompt itself.
    """

    def want(self, prompt: str, texts: Sequence[str]) -> Sequence[WrittenQuestion] | RowError:
        """A question for each text that is wanted, of `texts` where there are any; or why there is none."""


def takes_questions(metric: Metric) -> bool:
    """Whether it scores by questions, or texts, that the benchmark ships or that come with an image."""
    return isinstance(metric, PackedMetric | WantingMetric)
