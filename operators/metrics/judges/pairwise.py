"""Judge that sees two images, which two generators made for the same prompt, and says which is better."""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from plumbline.operators.base.bounds import NonNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    MAX_RATIONALE_CHARACTERS,
    NO_OBJECT_PROBLEM,
    REPEAT_REQUEST,
    REPLY_INSTRUCTIONS,
    fill_template,
    iterate_objects,
    read_rationale,
)
from plumbline.operators.metrics.metric import (
    SHARE_RANGE,
    CallEstimate,
    Evidence,
    PairSelection,
    Scored,
    ScoreRange,
    View,
)
from plumbline.operators.metrics.questions.question_metric import AnswerForm
from plumbline.operators.metrics.reply_forms import (
    ReplyFormat,
    make_choice_schema,
    make_object_schema,
    make_string_schema,
)
from plumbline.operators.metrics.wording import Release, WordedMetric, ask_as_released, digest_templates
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask_each
from plumbline.operators.models.calls import Request

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile

Choice = Literal["first", "second", "tie", "neither"]
TEMPLATE_NAME = "pairwise"
CHOICE_SENTENCES: Mapping[Choice, str] = {
    "first": "The first image is better",
    "second": "The second image is better",
    "tie": "Both images are equally good",
    "neither": "Neither image does what the prompt says",
}
"""Statements that the judge chooses from, by choice."""
P_FIRST_BY_CHOICE: Mapping[Choice, float] = {"first": 1.0, "second": 0.0, "tie": 0.5, "neither": 0.5}
"""Probability that the first image is better, if the judge makes this choice."""
LETTER_INSTRUCTION = "Reply with the letter of the right statement alone."
"""Instruction for a judge that is not asked for a reply: the likelihoods of the letters decide."""
BASELINE_SCORE = 0.5
"""Score of the baseline's images, which are not compared with themselves."""


class PairAnswer(NamedTuple):
    """A judge's answer about two images, in the order in which they were shown."""

    choice: Choice
    p_first: float
    """Probability that the first image is better; ties and `neither` count half."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PairRelease(Release):
    """Base class of releases whose prompt asks a judge which of two images is better."""

    fixed_options: ClassVar[tuple[str, ...]] = ("answers", "tie", "neither", "replies", "max_tokens", "temperature")
    compares_edits: ClassVar[bool] = False
    """True if the judge sees the image before the edits in front of the two images."""
    max_tokens: ClassVar[int]
    """Maximum number of tokens in a reply."""
    tries: ClassVar[int] = 1
    """Number of requests for a reply that can be read."""

    @abstractmethod
    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        """Return the request about two images for a prompt; the judge sees the first image first."""

    @abstractmethod
    def read_reply(self, reply: str) -> PairAnswer:
        """Return the answer in a reply; raise one of READER_ERRORS if there is none."""

    def compare(self, prompt: str, seed: int, views: int) -> Writing[tuple[PairAnswer, ...]]:
        """Ask for a reply about the images in each view; return the answers."""
        request = self.request(prompt, ReplySampling(self.max_tokens, self.temperature, seed))
        requests = [request._replace(view=view) for view in range(views)]
        answers = yield from ask_as_released(requests, [self.read_reply] * views, tries=self.tries)
        return tuple(answers)


PAIR_RELEASES = Extensions[type[PairRelease]]("pairwise_wordings", {}, PairRelease)
"""Releases whose wording a pairwise judge can be asked in, by name; all are in plugins."""


@dataclass(frozen=True, kw_only=True)
class PairwiseConfig(WordedMetric):
    """Metric whose judge compares images from two generators; the score is the share of comparisons an image wins."""

    kind: Literal["pairwise"] = "pairwise"
    story: ClassVar[str] = (
        "shows a model two images of a prompt, in both orders, and asks which is better; the score is the share of "
        "comparisons that an image wins"
    )
    chain: ClassVar[tuple[str, ...]] = ("comparisons", "win_rates", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("judge",)
    views: ClassVar[tuple[View, ...]] = ("pair", "swapped_pair")
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    templates: ClassVar[tuple[str, ...]] = (TEMPLATE_NAME,)
    judge: str = "vlm"
    """Role of the vision-language model, which must take two images in one question."""
    pairs: Literal["all", "baseline", "neighbours", "active"] = "all"
    """Generators to compare. `all`: every two generators; `baseline`: each generator with `baseline`; `neighbours`:
    generators that are close to each other in the ranking by `ranked_by`; `active`, for adaptive sweeps: in each round,
    only the pairs for which it is still undecided which generator wins more often.
    """
    baseline: str | None = None
    """Generator to compare all others with; only for pairs=baseline."""
    ranked_by: str | None = None
    """Metric that ranks the generators, in the newest run of the store that has it; only for pairs=neighbours."""
    neighbours: Positive = 1
    """Number of places in the ranking up to which generators are compared; only for pairs=neighbours."""
    answers: AnswerForm | None = None
    """`likelihood`: the probabilities of the choices' letters are read from one pass of the model, without a reason;
    `reply`: the model writes its choice and the reason. Null is `reply` for services, and `likelihood` for models that
    run here.
    """
    tie: bool = True
    """True if the judge may say that both images are equally good."""
    neither: bool = True
    """True if the judge may say that neither image does what the prompt says."""
    replies: ReplyFormat = "json"
    """Format of a reply: `json` is an object, enforced by a schema if the engine supports it; `text` has the letter of
    the choice on a line, followed by the reason.
    """
    release: str | None = None
    """Name of the released judge whose prompt is sent, if the folder `wording` contains prompts of several."""
    max_tokens: Positive = 512
    """Maximum number of tokens in a reply."""
    temperature: NonNegative = 0.0
    """Sampling temperature; 0 always selects the likeliest token."""
    seed: int = 0
    """Random seed for sampling; has no effect at temperature 0."""

    def __post_init__(self) -> None:
        WordedMetric.__post_init__(self)
        needs = {"baseline": self.baseline, "ranked_by": self.ranked_by}
        needed = {"baseline": "baseline", "neighbours": "ranked_by"}.get(self.pairs)
        if needed is not None and needs[needed] is None:
            what = "the name of a generator" if needed == "baseline" else "the name of a metric"
            raise ConfigError(f"{self.format_key(needed)}: pairs={self.pairs} needs {what}, found none; set it")
        for name, value in needs.items():
            if value is not None and name != needed:
                only = "baseline" if name == "baseline" else "neighbours"
                raise ConfigError(
                    f"{self.format_key(name)}: only for pairs={only}, found pairs={self.pairs}; leave it out"
                )
        if self.release is not None and self.wording is None:
            raise ConfigError(
                f"{self.format_key('release')}: requires {self.format_key('wording')}, found none; set it to the "
                "folder with a checkout of the release"
            )
        if self.release is not None and self.release not in self.named_releases:
            raise ConfigError(
                f"{self.format_key('release')}: expected one of {', '.join(self.named_releases)}, found "
                f"{self.release}; choose one of them"
            )

    @property
    def pair_selection(self) -> PairSelection:
        return PairSelection(self.pairs, self.baseline, self.ranked_by, self.neighbours)

    @property
    def ranks(self) -> bool:
        """Return False if generators have different opponents, because their win rates cannot be compared."""
        return self.pairs in ("all", "baseline")

    @property
    def named_releases(self) -> dict[str, type[PairRelease]]:
        """Releases whose judges see the images that this metric shows, by name."""
        return {name: each for name, each in PAIR_RELEASES.items() if each.compares_edits == self.needs_sources}

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return tuple(self.named_releases.values()) if self.release is None else (PAIR_RELEASES[self.release],)

    @property
    def _pair_release(self) -> PairRelease | None:
        release = self._wording.release
        return release if isinstance(release, PairRelease) else None

    @property
    def json_role(self) -> str | None:
        asks_for_json = self.answers == "reply" and self.replies == "json"
        return "judge" if asks_for_json and self._pair_release is None else None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices that the judge may make, in the order of their letters."""
        allowed = {"tie": self.tie, "neither": self.neither}
        return tuple(choice for choice in CHOICE_SENTENCES if allowed.get(choice, True))

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(ascii_uppercase[: len(self.choices)])

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with its wording, and with the form of answers that suits its model."""
        if self.wording is not None and self.release is None:
            folder = Path(self.wording).expanduser()
            found = [name for name, each in self.named_releases.items() if (folder / each.marker_file).is_file()]
            if len(found) > 1:
                raise ConfigError(
                    f"{self.format_key('release')}: {folder} contains the prompts of {', '.join(found)}; name "
                    f"one of them"
                )
        metric = WordedMetric.complete_options(self, profile_of)
        is_released = metric._pair_release is not None
        form: AnswerForm = "reply" if is_released or profile_of(self.judge).lettered else "likelihood"
        return replace(metric, answers=metric.answers or form)

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(len(self.views), 1)

    def list_comparison_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine an answer, except the judge."""
        if (release := self._pair_release) is not None:
            return {"answers": self.answers, "wording": release.digest, "seed": self.seed}
        asked = {"answers": self.answers, "choices": self.choices, "template": digest_templates(self.question(""))}
        if self.answers == "likelihood":
            return asked
        sampling = ReplySampling(self.max_tokens, self.temperature, self.seed)._asdict()
        return {**asked, "replies": self.replies, "again": digest_templates(REPEAT_REQUEST), **sampling}

    def question(self, prompt: str) -> str:
        """Return the text that asks which of two images is better for this prompt, and lists the choices by letter."""
        listed = "\n".join(
            f"{name}. {CHOICE_SENTENCES[choice]}." for name, choice in zip(self.letters, self.choices, strict=True)
        )
        text = fill_template(
            self.get_template_text(TEMPLATE_NAME), prompt=parsing.collapse_spaces(prompt), choices=listed
        )
        if self.answers == "likelihood":
            return text + LETTER_INSTRUCTION
        form = '{"choice": "<letter of the right statement>", "rationale": "<explanation>"}'
        return text + REPLY_INSTRUCTIONS[self.replies].format(form=form, lines="the letter of the right statement")

    def combine_logprobs(self, logprobs: Sequence[Sequence[float]]) -> PairAnswer:
        """Return the answer that follows from the log-probabilities of the letters' tokens."""
        totals = [math.fsum(tokens) for tokens in logprobs]
        weights = [math.exp(total - max(totals)) for total in totals]
        shares = {choice: weight / math.fsum(weights) for choice, weight in zip(self.choices, weights, strict=True)}
        p_first = math.fsum(P_FIRST_BY_CHOICE[choice] * share for choice, share in shares.items())
        return PairAnswer(max(shares, key=shares.__getitem__), min(p_first, 1.0))

    def compare(self, prompt: str) -> Writing[tuple[PairAnswer, ...]]:
        """Ask the judge for a reply about each order of the two images; return its answers.

        Raise UnreadableReply if a reply contains no choice.
        """
        if (release := self._pair_release) is not None:
            return (yield from release.compare(prompt, self.seed, len(self.views)))
        schema = json.dumps(
            make_object_schema(
                choice=make_choice_schema(self.letters), rationale=make_string_schema(MAX_RATIONALE_CHARACTERS)
            )
        )
        sampling = ReplySampling(self.max_tokens, self.temperature, self.seed)
        request = sampling.make_request(
            self.question(prompt), stop=(), schema=schema if self.replies == "json" else None
        )
        requests = [request._replace(view=view) for view in range(len(self.views))]
        answers = []
        for answer in (yield from ask_each(requests, [self.read_reply] * len(requests), again=REPEAT_REQUEST)):
            if isinstance(answer, UnreadableReply):
                raise answer
            answers.append(answer)
        return tuple(answers)

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the answer that a reply contains, with its reason; raise UnreadableReply if it contains no choice."""
        problem = f"expected one of the letters {', '.join(self.letters)}, found none"
        if self.replies == "text":
            lines = parsing.split_lines(reply)
            return self._read_answer(parsing.read_short_answer(lines[0]) if lines else "", " ".join(lines[1:]), problem)
        found = next((each for each in iterate_objects(reply) if "choice" in each), None)
        if found is None:
            raise UnreadableReply(NO_OBJECT_PROBLEM)
        return self._read_answer(found["choice"], found.get("rationale"), problem)

    def _read_answer(self, answer: Any, reason: Any, problem: str) -> PairAnswer:
        sentences = [CHOICE_SENTENCES[choice] for choice in self.choices]
        sentence = parsing.read_choice(answer, sentences) if isinstance(answer, str) else None
        if sentence is None:
            raise UnreadableReply(problem)
        choice = self.choices[sentences.index(sentence)]
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(reason) or None)

    def list_score_options(self) -> dict[str, Any]:
        """Return the name of the baseline, whose images have the fixed score BASELINE_SCORE."""
        return {} if self.baseline is None else {"baseline": self.baseline}

    def score(self, evidence: Evidence) -> Scored:
        """Return the mean probability of being better, in [0, 1], over the image's comparisons."""
        wins = evidence.row["wins"]
        if self.baseline is not None and evidence.row["generator"] == self.baseline:
            return Scored(BASELINE_SCORE, n_questions=len(wins))
        return Scored(math.fsum(wins) / len(wins), n_questions=len(wins))
