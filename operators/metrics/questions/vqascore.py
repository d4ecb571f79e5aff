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
    SHARES,
    Evidence,
    Metric,
    Prior,
    Scored,
    ScoreRange,
    incomplete,
    insert_prior,
)
from plumbline.operators.metrics.writing import VqaPrompt, Writing, WrittenQuestion
from plumbline.operators.models.vqa_profiles import QuestionName, VqaProfile

Reduction = Literal["mean", "product", "first"]
"""Step from the log-probabilities of an answer's tokens to a score: see VqaScoreConfig.reduction."""


class YesQuestion(NamedTuple):
    """VQAScore's question about an image."""

    template: str
    """The question; `{}` is replaced by the prompt's text."""
    answer: str
    """The answer whose likelihood is the score."""
    reduction: Reduction


RELEASED = YesQuestion('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")
DEFAULT_QUESTIONS: Mapping[QuestionName, YesQuestion] = {
    "released": RELEASED,  # Lin et al. 2024, as released for CLIP-FlanT5 and LLaVA-1.5
    "first_token": YesQuestion(
        'Does this figure show "{}"? Please answer Yes or No.', "Yes", "first"
    ),  # later releases
    "released_first_token": RELEASED._replace(reduction="first"),  # models that read questions alone, such as PaliGemma
    "blip": RELEASED._replace(answer="yes", reduction="product"),  # BLIP's code ranks answers by their tokens' sum
    "blip2": RELEASED._replace(answer="yes"),
    "instructblip": YesQuestion('Question: Does this figure show "{}"? Please answer yes or no.', "yes", "mean"),
}
"""The question that each kind of VQA model is asked by default; its profile names it (operators/models/families)."""
MAX_EXPONENT = 700.0
"""Largest exponent of a float; beyond it a share is 0."""

SPELLED = ("{}", " {}")
"""Spellings with and without a space before. A tokenizer may have a token for each, or one for both; it then treats yes
and no alike, so their ratio is unaffected."""
YES, NO = (tuple(form.format(word) for word in (name, name.lower()) for form in SPELLED) for name in ("Yes", "No"))
"""Spellings of yes and no that GenEval2 sums."""
AFFIRMATIONS = frozenset({"yes", "true", "correct", "right"})
"""First words that make an answer a yes."""
NEGATIONS = frozenset(
    [
        *("no", "not", "nope", "never", "none", "nothing", "neither", "cannot"),
        *("false", "untrue", "wrong", "incorrect", "inaccurate", "unlike", "mismatch", "mismatched"),
        *("nein", "nicht", "falsch", "non", "faux", "nee", "não", "falso", "нет", "неверно"),
        *("不", "不是", "不对", "没有", "否", "错", "いいえ", "違います", "아니요", "아니오"),
    ]
)
"""Words for no: in English, and as the plain answer in other languages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VqaScoreConfig(Metric):
    """VQAScore; `with_model_defaults` fills in null options from DEFAULT_QUESTIONS, by the VQA model's profile."""

    kind: Literal["vqascore"] = "vqascore"
    story: ClassVar[str] = (
        "asks a model one question, whether the image shows the whole prompt, and takes the probability of “yes”"
    )
    model: str = "vqa"
    """Role of the VQA model."""
    template: str | None = None
    """The question; `{}` is replaced by the prompt's text."""
    answer: str | None = None
    """Answer whose likelihood is the score."""
    lower_is_better: bool | None = None
    """True if a likely answer means that the image does not fit; null: True if the answer is a no, such as `No`."""
    answers: Literal["likelihood", "reply"] = "likelihood"
    """`reply`: 1 if the model's own words are the answer, else 0, as the paper's table 15 generates answers."""
    reduction: Reduction | None = None
    """`mean`: exp of the mean log-probability over the answer's tokens with EOS, as in the released code; `product`:
    the paper's eq. 3; `first`: only the first token."""
    normalise: Literal["yes_no"] | None = None
    """`yes_no`: P(Yes) / (P(Yes) + P(No)), each summed over its spellings, instead of the answer's own likelihood."""
    prior: Prior | None = None
    """Removal of the model's bias from the odds of yes; needs `normalise` (operators/metrics/metric.py)."""

    def __post_init__(self) -> None:
        for name in ("answer", "reduction"):
            if self.normalise is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"vqascore {name}: expected null with normalise={self.normalise}, which weighs every spelling of "
                    f"Yes against those of No, got {getattr(self, name)!r}; leave one of the two out"
                )
        if self.answers == "reply" and self.normalise is not None:
            raise ConfigError(
                f"vqascore answers: reply compares words, and normalise={self.normalise} weighs likelihoods; leave one "
                "of the two out"
            )
        if self.prior is not None and self.normalise is None:
            raise ConfigError(
                f"vqascore prior: {self.prior} is taken out of the odds of yes; expected normalise=yes_no, got null; "
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
        return SHARES

    @property
    def prefers_lower(self) -> bool:
        if self.lower_is_better is not None:
            return self.lower_is_better
        return self.answer is not None and says_no(self.answer)

    def with_model_defaults(self, profile_of: Callable[[str], VqaProfile]) -> "VqaScoreConfig":
        """Return the metric with null options from the VQA model's profile, which it needs for asking and scoring."""
        profile = profile_of(self.model)
        if profile.compares and self.normalise is None:
            raise ConfigError(
                f"vqascore model: the role {self.model!r} is a {profile.name} model, which compares choices and cannot "
                "weigh a single answer; set normalise=yes_no (metric=[vqascore_normalised]), or use another VQA model"
            )
        open_fields = ("template",) if self.normalise is not None else YesQuestion._fields
        asked = DEFAULT_QUESTIONS[profile.question]._asdict()
        return replace(self, **{name: asked[name] for name in open_fields if getattr(self, name) is None})

    @property
    def asks(self) -> YesQuestion:
        """Question, answer and reduction without `normalise`, once the model's defaults are filled in."""
        assert self.template is not None and self.answer is not None and self.reduction is not None, (
            "with_model_defaults fills it in"
        )
        return YesQuestion(self.template, self.answer, self.reduction)

    @property
    def choices(self) -> tuple[str, ...]:
        """Answers whose likelihoods are requested."""
        return (self.asks.answer,) if self.normalise is None else YES + NO

    def asking(self) -> dict[str, Any]:
        """Return all options that decide the question; the reduction is applied afterwards."""
        if self.normalise is not None:
            return {"template": self.template, "choices": self.choices}
        return {"template": self.asks.template, "answer": self.asks.answer}

    def answering(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.asking(), **({} if self.answers == "likelihood" else {"form": self.answers})}

    def scoring(self) -> dict[str, Any]:
        if self.answers == "reply":
            return {"answers": self.answers}
        return {"reduction": self.asks.reduction} if self.normalise is None else {"normalise": self.normalise}

    def question(self, prompt: str) -> str:
        """Return the question about an image of the prompt, which is inserted literally."""
        before, after = self._around_prompt
        return before + prompt + after

    @property
    def _around_prompt(self) -> list[str]:
        assert self.template is not None, "with_model_defaults fills it in"
        return self.template.split("{}")

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Return the single question; it needs no model."""
        yield from ()
        return [WrittenQuestion("1", self.question(prompt), self.choices)]

    def vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the question unchanged, or with the prompt's words shuffled."""
        asked = text
        if self.ablation is not None:
            before, after = self._around_prompt
            asked = self.question(self.apply_word_order(text.removeprefix(before).removesuffix(after)))
        if self.answers == "likelihood":
            return VqaPrompt(asked, tuple(choices), free=False)
        answer = choices[0]
        key = parsing.normalise(answer)
        others = [word for word in parsing.YES_NO if word != key] if key in parsing.YES_NO else []
        return VqaPrompt(asked, (answer, *others), free=True, exact=True)

    def score(self, evidence: Evidence) -> Scored:
        """Return the likelihood of the answer; the mean if there are several questions."""
        answers = evidence.row["answers"]
        if not answers:
            return Scored(None, error=incomplete("answers", "lacks the answer to its prompt's question"))
        if self.answers == "reply":
            return Scored(fmean(answer["chosen"] == self.asks.answer for answer in answers), n_questions=len(answers))
        priors = {answer.question.question_id: answer.prior for answer in evidence.answered}
        likelihoods = []
        for answer in answers:
            logprobs, prior = answer["token_logprobs"], priors.get(answer["question_id"], ())
            if self.normalise is None:
                likelihoods.append(reduce_answer(logprobs[0], self.asks.reduction))
            else:
                bias = log_odds(prior[: len(YES)], prior[len(YES) :]) if prior else 0.0
                likelihoods.append(share_of_yes(logprobs[: len(YES)], logprobs[len(YES) :], bias))
        return Scored(fmean(likelihoods), n_questions=len(likelihoods))


def says_no(answer: str) -> bool:
    """Return True if the answer is a no: `No`, `Wrong`, `It does not`; False for `Yes, no doubt`."""
    words = re.findall(r"[\w']+", answer.casefold().replace("’", "'"))
    if not words or words[0] in AFFIRMATIONS:
        return False
    return any(word in NEGATIONS or word.endswith("n't") for word in words)


def share_of_yes(yes: Sequence[Sequence[float]], no: Sequence[Sequence[float]], prior: float = 0.0) -> float:
    """Return P(Yes) / (P(Yes) + P(No)) by the tokens of all spellings, EOS last; `prior` is taken off the log odds."""
    difference = prior - log_odds(yes, no)
    return 1 / (1 + math.exp(difference)) if difference < MAX_EXPONENT else 0.0


def log_odds(yes: Sequence[Sequence[float]], no: Sequence[Sequence[float]]) -> float:
    """Return log(P(Yes) / P(No)); spellings count without EOS, as the answer may continue after the word."""
    return _log_sum(yes) - _log_sum(no)


def _log_sum(spellings: Sequence[Sequence[float]]) -> float:
    """Return the natural log of the probability that the answer begins with one of the spellings."""
    logs = [math.fsum(tokens[:-1]) for tokens in spellings]
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs))


def reduce_answer(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """Return the score in [0, 1] of one answer from the natural log probabilities of its tokens, EOS last."""
    return math.exp(log_likelihood(token_logprobs, reduction))


def log_likelihood(token_logprobs: Sequence[float], reduction: Reduction) -> float:
    """Return the natural log of `reduce_answer`, which does not underflow for long answers."""
    if reduction == "first":
        return token_logprobs[0]
    total = math.fsum(token_logprobs)
    return total / len(token_logprobs) if reduction == "mean" else total
