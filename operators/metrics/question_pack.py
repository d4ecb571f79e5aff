"""Questions that a benchmark ships, answered by a VQA model and counted in the benchmark's own way."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.answered import Answered, Element, Scored, element, mean_over_images, mean_scored
from plumbline.operators.metrics.dsg import Zeroing, holding
from plumbline.operators.metrics.metric import SHARES, Evidence, Expected, ScoreRange
from plumbline.operators.metrics.vqascore import log_likelihood
from plumbline.operators.metrics.writer import AskingConfig, likeliest
from plumbline.operators.models.vqa_profiles import Reduction, VqaProfile

Aggregate = Literal["share", "soft_mean", "soft_geometric"]
Spelling = Literal["released", "fixed"]
SPACED = ("{}", " {}")
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS = {word: str(number) for number, word in enumerate(NUMBER_WORDS, start=1)}


PackZeroing = Zeroing | Literal["in_order"]
"""The questions that must be right for a question to count: its parents (`direct`), all its ancestors (`recursive`), or
its parents after zeroing in order (`in_order`, see `holding_in_order`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionPackConfig(AskingConfig):
    """Who answers a benchmark's own questions, how they are put, and how answers become a score."""

    kind: Literal["question_pack"] = "question_pack"
    story: ClassVar[str] = "puts the benchmark's own questions to a model that sees the image, and counts its answers"
    chain: ClassVar[tuple[str, ...]] = ("questions", "answers", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("answers", "questions")
    matcher: str = "matcher"
    """The role of the text embedder that finds the choice nearest to a reply; only with `answers=reply`."""
    reduction: Reduction = "product"
    """How the likelihoods of a choice's tokens become one (operators/metrics/vqascore.py)."""
    aggregate: Aggregate = "share"
    """`share`: of questions answered right; `soft_mean` and `soft_geometric` (GenEval2's Soft-TIFA): the arithmetic and
    the geometric mean of the probabilities that an answer begins with a spelling of the right one."""
    spelling: Spelling = "released"
    """Of soft means: `released` sums the first tokens of all spellings, with and without a space before; `fixed` whole
    spellings, without the space."""
    zeroing: PackZeroing | None = None
    """Of a share: a question counts where its parents hold (`direct`), all its ancestors do (`recursive`), or those do
    that have not been zeroed before it (`in_order`); null takes every question by itself."""
    images: Literal["mean", "last"] = "mean"
    """Of a row of several images: the mean of their scores, or the last one's."""

    def __post_init__(self) -> None:
        AskingConfig.__post_init__(self)
        if self.soft and (self.zeroing is not None or self.form == "reply"):
            raise ConfigError(
                f"question_pack aggregate: {self.aggregate} weighs spellings; expected zeroing=null and no reply, got "
                f"zeroing={self.zeroing} and answers={self.answers}; leave them out, or use aggregate=share"
            )

    @property
    def soft(self) -> bool:
        """True if a question's score is a probability."""
        return self.aggregate != "share"

    @property
    def score_range(self) -> ScoreRange | None:
        """Shares, except for sums of first tokens: they can exceed 1, as spellings may share a first token."""
        return None if self.soft and self.spelling == "released" else SHARES

    @property
    def weighs_letters(self) -> bool:
        """Return True if choices are weighed by their letters; a soft mean weighs the right one's spellings."""
        return bool(self.letters) and self.form == "likelihood" and not self.soft

    @property
    def roles(self) -> dict[str, str]:
        return {"model": self.model} if self.form == "likelihood" else {"model": self.model, "matcher": self.matcher}

    def settled(self, profile_of: Callable[[str], VqaProfile]) -> "QuestionPackConfig":
        """The metric with what it leaves open as models of the kind have it."""
        kind = profile_of(self.model)
        if kind.compares and self.soft:
            raise ConfigError(
                f"question_pack model: the role {self.model!r} is a {kind.name} model, which compares choices and "
                "cannot weigh one alone; use another VQA model, or aggregate=share"
            )
        return AskingConfig.settled(self, profile_of)

    def expected(self, words: float) -> Expected:
        """No call to a writer; about a question for each content word."""
        return Expected(0, words)

    def refusal_of_pack(self, choices: Collection[int]) -> str | None:
        """A share is of questions with wrong choices too, a soft mean of those with the right one alone."""
        if self.soft and set(choices) - {1}:
            return f"aggregate={self.aggregate} sums the spellings of one answer; use aggregate=share"
        if not self.soft and min(choices, default=2) < 2:
            return "aggregate=share takes the likeliest of several choices; use another aggregate, or a judge"
        return None

    def asking(self) -> dict[str, Any]:
        """Nothing: the questions are the pack's."""
        return {}

    def answering(self) -> dict[str, Any]:
        """All that decides how questions are put to the VQA model."""
        asked = AskingConfig.answering(self)
        return {**asked, "spelling": self.spelling} if self.soft else asked

    def scoring(self) -> dict[str, Any]:
        """All that decides the score once the answers are there."""
        own = {"aggregate": self.aggregate, "images": self.images}
        if self.soft:
            return {**own, "spelling": self.spelling}
        return {**own, "zeroing": self.zeroing, **({} if self.form == "reply" else {"reduction": self.reduction})}

    def choices_put(self, choices: Sequence[str]) -> tuple[str, ...]:
        """The choices; of a soft mean all spellings of the right one."""
        return tuple(spellings(choices[0], self.spelling)) if self.soft else AskingConfig.choices_put(self, choices)

    def score(self, evidence: Evidence) -> Scored:
        """The score of an image by its answered questions."""
        answered = evidence.answered
        if self.soft:
            return _soft(answered, self.spelling, geometric=self.aggregate == "soft_geometric")
        given = [answer.chosen if self.form == "reply" else likeliest(answer, self.reduction) for answer in answered]
        right = {
            answer.question.question_id: said == answer.question.answer
            for answer, said in zip(answered, given, strict=True)
        }
        holds = self._holding(right, {answer.question.question_id: answer.question.parents for answer in answered})
        return mean_scored(
            [
                element(answer, given=said, score=float(holds[answer.question.question_id]))
                for answer, said in zip(answered, given, strict=True)
            ]
        )

    def _holding(self, right: Mapping[str, bool], parents: Mapping[str, Sequence[str]]) -> Mapping[str, bool]:
        if self.zeroing is None:
            return right
        return holding_in_order(right, parents) if self.zeroing == "in_order" else holding(right, parents, self.zeroing)

    def combined(self, images: Sequence[Scored]) -> Scored:
        """The mean over a row's images, or the last one's score."""
        return images[-1] if self.images == "last" else mean_over_images(images)


def holding_in_order(right: Mapping[str, bool], parents: Mapping[str, Sequence[str]]) -> dict[str, bool]:
    """Return which questions count if each, in its turn, is zeroed in place, as in DPG-Bench's code.

    A parent that was zeroed before its children zeroes them too; a parent after them does so by its own answer only.
    """
    holds = dict(right)
    for name, needed in parents.items():
        holds[name] = holds[name] and all(holds.get(parent, True) for parent in needed)
    return holds


def spellings(answer: str, spelling: Spelling) -> list[str]:
    """What counts as an answer: as written, with a capital, and a number to ten in digits; `released` adds each with a
    space before it. GenEval2 has a yes as `Yes` and `yes`.
    """
    digits = filter(None, [DIGITS.get(answer.lower())])
    words = ("Yes", "yes") if answer.lower() == "yes" else (answer, answer.capitalize(), *digits)
    forms = SPACED if spelling == "released" else SPACED[:1]
    return list(dict.fromkeys(form.format(word) for word in words for form in forms))


def _soft(answered: Sequence[Answered], spelling: Spelling, *, geometric: bool) -> Scored:
    """The mean of the probabilities of the right answers."""
    scored = mean_scored([_probable(answer, spelling) for answer in answered])
    if not geometric or scored.elements is None or scored.score is None:
        return scored
    scores = [one.score for one in scored.elements if one.score is not None]
    product = 0.0 if 0.0 in scores else math.exp(math.fsum(map(math.log, scores)) / len(scores))
    return scored._replace(score=product)


def _probable(answered: Answered, spelling: Spelling) -> Element:
    """The probability that an answer begins with one of the spellings; the end of the turn does not count."""
    logs = [
        log_likelihood(tokens, "first") if spelling == "released" else math.fsum(tokens[:-1])
        for tokens in answered.token_logprobs
    ]
    return element(answered, given=None, score=math.fsum(map(math.exp, logs)))
