"""VQAScore: the likelihood of "Yes" to one question about the image (vqascore_genai_bench.txt, eq. 2-3, appendix C)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import (
    SHARE_RANGE,
    Evidence,
    Metric,
    Prior,
    Scored,
    ScoreRange,
    insert_prior,
    make_incomplete_cell_error,
)
from plumbline.operators.metrics.writing import VqaPrompt, Writing, WrittenQuestion
from plumbline.operators.models.vqa_profiles import QuestionName, VqaProfile

Reduction = Literal["mean", "product", "first"]
"""Method for combining the log probabilities of an answer's tokens into a score: see VqaScoreConfig.reduction."""


class YesQuestion(NamedTuple):
    """A template of VQAScore's question, with the answer whose likelihood counts and the way to compute it."""

    template: str
    """Template of the question; `{}` is replaced by the prompt's text."""
    answer: str
    """Answer whose likelihood is the score."""
    reduction: Reduction


RELEASED_QUESTION = YesQuestion('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")
DEFAULT_QUESTIONS: Mapping[QuestionName, YesQuestion] = {
    "released": RELEASED_QUESTION,  # Lin et al. 2024, as released for CLIP-FlanT5 and LLaVA-1.5
    "first_token": YesQuestion(
        'Does this figure show "{}"? Please answer Yes or No.', "Yes", "first"
    ),  # later releases
    "released_first_token": RELEASED_QUESTION._replace(
        reduction="first"
    ),  # models that take only a question, such as PaliGemma
    "blip": RELEASED_QUESTION._replace(
        answer="yes", reduction="product"
    ),  # BLIP's code ranks answers by their tokens' sum
    "blip2": RELEASED_QUESTION._replace(answer="yes"),
    "instructblip": YesQuestion('Question: Does this figure show "{}"? Please answer yes or no.', "yes", "mean"),
}
"""Default question for each kind of VQA model, by the name in the model's profile (operators/models/families)."""
MAX_EXPONENT = 700.0
"""Exponent up to which exp() cannot overflow. If the log odds of no are larger, P(Yes) is 0."""

SPACING_FORMS = ("{}", " {}")
"""Spellings with and without a leading space. A tokenizer with a single token for both spellings counts that token
twice, for yes as well as for no, so that the ratio of yes to no is unaffected.
"""
YES_SPELLINGS, NO_SPELLINGS = (
    tuple(form.format(word) for word in (name, name.lower()) for form in SPACING_FORMS) for name in ("Yes", "No")
)
"""Spellings of yes and no whose probabilities GenEval2 sums."""
AFFIRMATION_WORDS = frozenset({"yes", "true", "correct", "right"})
"""First words that mark an answer as a yes."""
NEGATION_WORDS = frozenset(
    [
        *("no", "not", "nope", "never", "none", "nothing", "neither", "cannot"),
        *("false", "untrue", "wrong", "incorrect", "inaccurate", "unlike", "mismatch", "mismatched"),
        *("nein", "nicht", "falsch", "non", "faux", "nee", "não", "falso", "нет", "неверно"),
        *("不", "不是", "不对", "没有", "否", "错", "いいえ", "違います", "아니요", "아니오"),
    ]
)
"""Words that mark an answer as a no: English negations, and the words for no or wrong in other languages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaScoreConfig(Metric):
    """VQAScore: the likelihood of an answer, usually yes, to one question about the image and its prompt.

    `complete_options` fills in null options from DEFAULT_QUESTIONS, according to the VQA model's profile.
    """

    kind: Literal["vqascore"] = "vqascore"
    story: ClassVar[str] = (
        "asks a model one question, whether the image shows the whole prompt, and takes the probability of “yes”"
    )
    model: str = "vqa"
    """Role of the VQA model."""
    template: str | None = None
    """Template of the question; `{}` is replaced by the prompt's text."""
    answer: str | None = None
    """The answer whose likelihood is the score."""
    lower_is_better: bool | None = None
    """True if a likely answer means that the image does not match. Null means True if the answer is a no, such as `No`.
    """
    answers: Literal["likelihood", "reply"] = "likelihood"
    """`likelihood`: the score is the likelihood of the answer; `reply`: the score is 1 if the model replies with the
    answer, otherwise 0, as in the paper's table 15, where answers are generated.
    """
    reduction: Reduction | None = None
    """`mean`: exp of the mean log probability of the answer's tokens including EOS, as in the released code; `product`:
    the paper's eq. 3; `first`: only the first token.
    """
    normalise: Literal["yes_no"] | None = None
    """`yes_no`: P(Yes) / (P(Yes) + P(No)), each summed over its spellings, instead of the likelihood of the answer."""
    prior: Prior | None = None
    """Method that removes the model's bias from the odds of yes (operators/metrics/metric.py); requires `normalise`."""

    def __post_init__(self) -> None:
        for name in ("answer", "reduction"):
            if self.normalise is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"vqascore {name}: expected null with normalise={self.normalise}, which compares all spellings "
                    f"of Yes with those of No, got {getattr(self, name)!r}; leave one of the two out"
                )
        if self.answers == "reply" and self.normalise is not None:
            raise ConfigError(
                f"vqascore: answers=reply compares words, but normalise={self.normalise} needs likelihoods; leave one "
                "of the two out"
            )
        if self.prior is not None and self.normalise is None:
            raise ConfigError(
                f"vqascore prior: {self.prior} is removed from the odds of yes; expected normalise=yes_no, got null; "
                "set it (metric=[vqascore_normalised])"
            )
        if self.template is not None and self.template.count("{}") != 1:
            raise ConfigError(f"vqascore template: expected exactly one {{}} for the prompt, got {self.template!r}")
        if self.answer is not None and not self.answer.strip():
            raise ConfigError("vqascore answer: expected a word such as Yes, got an empty string")

    @property
    def chain(self) -> tuple[str, ...]:
        return insert_prior(("questions", "answers", "scores"), self.prior)

    @property
    def scored_from(self) -> tuple[str, ...]:
        return ("answers",) if self.prior is None else ("answers", "questions", "priors")

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARE_RANGE

    @property
    def prefers_lower(self) -> bool:
        if self.lower_is_better is not None:
            return self.lower_is_better
        return self.answer is not None and says_no(self.answer)

    def complete_options(self, profile_of: Callable[[str], VqaProfile]) -> "VqaScoreConfig":
        """Return the metric with null options set by the VQA model's profile; call this before asking and scoring."""
        profile = profile_of(self.model)
        if profile.compares and self.normalise is None:
            raise ConfigError(
                f"vqascore model: the model for role {self.model!r} is a {profile.name} model, which compares choices "
                "and cannot score a single answer; set normalise=yes_no (metric=[vqascore_normalised]), or use another "
                "VQA model"
            )
        open_fields = ("template",) if self.normalise is not None else YesQuestion._fields
        asked = DEFAULT_QUESTIONS[profile.question]._asdict()
        return replace(self, **{name: asked[name] for name in open_fields if getattr(self, name) is None})

    @property
    def yes_question(self) -> YesQuestion:
        """The question, its answer and the reduction, ignoring `normalise`; model defaults must have been filled in."""
        assert self.template is not None and self.answer is not None and self.reduction is not None, (
            "complete_options fills it in"
        )
        return YesQuestion(self.template, self.answer, self.reduction)

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers whose likelihoods are requested: one or, if `normalise` is set, all spellings of yes and no."""
        return (self.yes_question.answer,) if self.normalise is None else YES_SPELLINGS + NO_SPELLINGS

    def list_question_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine the question; the reduction is applied afterwards."""
        if self.normalise is not None:
            return {"template": self.template, "choices": self.choices}
        return {"template": self.yes_question.template, "answer": self.yes_question.answer}

    def list_answer_options(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            **self.list_question_options(),
            **({} if self.answers == "likelihood" else {"form": self.answers}),
        }

    def list_score_options(self) -> dict[str, Any]:
        if self.answers == "reply":
            return {"answers": self.answers}
        return {"reduction": self.yes_question.reduction} if self.normalise is None else {"normalise": self.normalise}

    def question(self, prompt: str) -> str:
        """Return the question that is asked about an image for this prompt. The prompt is inserted literally."""
        before, after = self._split_template
        return before + prompt + after

    @property
    def _split_template(self) -> list[str]:
        assert self.template is not None, "complete_options fills it in"
        return self.template.split("{}")

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Return the metric's single question; no model is needed for this."""
        yield from ()
        return [WrittenQuestion("1", self.question(prompt), self.choices)]

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the question unchanged or, under the ablation `shuffled_words`, with the prompt's words shuffled."""
        asked = text
        if self.ablation is not None:
            before, after = self._split_template
            asked = self.question(self.apply_word_order(text.removeprefix(before).removesuffix(after)))
        if self.answers == "likelihood":
            return VqaPrompt(asked, tuple(choices), free=False)
        answer = choices[0]
        key = parsing.normalise(answer)
        others = [word for word in parsing.YES_NO if word != key] if key in parsing.YES_NO else []
        return VqaPrompt(asked, (answer, *others), free=True, exact=True)

    def score(self, evidence: Evidence) -> Scored:
        """Return the likelihood of the answer, or the mean likelihood if there are several questions."""
        answers = evidence.row["answers"]
        if not answers:
            return Scored(
                None, error=make_incomplete_cell_error("answers", "lacks the answer to its prompt's question")
            )
        if self.answers == "reply":
            return Scored(
                fmean(answer["chosen"] == self.yes_question.answer for answer in answers), n_questions=len(answers)
            )
        priors = {answer.question.question_id: answer.prior for answer in evidence.answered}
        likelihoods = []
        for answer in answers:
            logprobs, prior = answer["token_logprobs"], priors.get(answer["question_id"], ())
            if self.normalise is None:
                likelihoods.append(reduce_answer(logprobs[0], self.yes_question.reduction))
            else:
                bias = compute_log_odds(prior[: len(YES_SPELLINGS)], prior[len(YES_SPELLINGS) :]) if prior else 0.0
                likelihoods.append(
                    compute_yes_share(logprobs[: len(YES_SPELLINGS)], logprobs[len(YES_SPELLINGS) :], bias)
                )
        return Scored(fmean(likelihoods), n_questions=len(likelihoods))


def says_no(answer: str) -> bool:
    """Return True if the answer means no: `No`, `Wrong`, `It does not`, but not `Yes, no doubt`."""
    words = re.findall(r"[\w']+", answer.casefold().replace("’", "'"))
    if not words or words[0] in AFFIRMATION_WORDS:
        return False
    return any(word in NEGATION_WORDS or word.endswith("n't") for word in words)


def compute_yes_share(yes: Sequence[Sequence[float]], no: Sequence[Sequence[float]], prior: float = 0.0) -> float:
    """Return P(Yes) / (P(Yes) + P(No)), given each spelling's token log probabilities (EOS last).

    `prior` is subtracted from the log odds.
    """
    difference = prior - compute_log_odds(yes, no)
    return 1 / (1 + math.exp(difference)) if difference < MAX_EXPONENT else 0.0


def compute_log_odds(yes: Sequence[Sequence[float]], no: Sequence[Sequence[float]]) -> float:
    """Return log(P(Yes) / P(No)). Spellings count without EOS, because the reply may continue after the word."""
    return _compute_log_probability(yes) - _compute_log_probability(no)


def _compute_log_probability(spellings: Sequence[Sequence[float]]) -> float:
    """Return the natural log of the probability that the reply begins with one of the spellings."""
    logs = [math.fsum(tokens[:-1]) for tokens in spellings]
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs))


def reduce_answer(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """Return an answer's score in [0, 1], given the natural log probabilities of its tokens (EOS last)."""
    return math.exp(compute_log_likelihood(token_logprobs, reduction))


def compute_log_likelihood(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """Return the natural log of `reduce_answer`, computed so that long answers do not underflow."""
    if reduction == "first":
        return token_logprobs[0]
    total = math.fsum(token_logprobs)
    return total / len(token_logprobs) if reduction == "mean" else total
