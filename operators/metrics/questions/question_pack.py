"""Questions shipped with a benchmark, answered by a VQA model and aggregated as the benchmark specifies."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import (
    SHARE_RANGE,
    Answered,
    CallEstimate,
    Element,
    Evidence,
    Scored,
    ScoreRange,
    average_elements,
    average_images,
    make_element,
)
from plumbline.operators.metrics.questions.dsg import Zeroing, apply_zeroing
from plumbline.operators.metrics.questions.question_metric import QuestionMetricConfig, find_likeliest_choice
from plumbline.operators.metrics.questions.vqascore import Reduction, compute_log_likelihood
from plumbline.operators.models.vqa_profiles import VqaProfile

Aggregation = Literal["share", "soft_mean", "soft_geometric"]
Spelling = Literal["released", "fixed"]
SPACING_FORMS = ("{}", " {}")
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS_BY_WORD = {word: str(number) for number, word in enumerate(NUMBER_WORDS, start=1)}


PackZeroing = Zeroing | Literal["in_order"]
"""The other questions that must be answered correctly for a question to count: its parents (`direct`), all its
ancestors (`recursive`), or its parents after zeroing in order (`in_order`, see `apply_zeroing_in_order`).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionPackConfig(QuestionMetricConfig):
    kind: Literal["question_pack"] = "question_pack"
    story: ClassVar[str] = (
        "asks the benchmark's own questions to a model that sees the image, and counts the right answers"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "answers", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("answers", "questions")
    matcher: str = "matcher"
    """Role of the text embedder that finds the choice closest to a reply; used only with `answers=reply`."""
    reduction: Reduction = "product"
    """Method for combining the token likelihoods of a choice (operators/metrics/questions/vqascore.py)."""
    aggregate: Aggregation = "share"
    """`share`: fraction of questions answered correctly; `soft_mean` and `soft_geometric` (GenEval2's Soft-TIFA):
    arithmetic and geometric mean, over the questions, of the probability that the reply begins with a spelling of the
    correct answer.
    """
    spelling: Spelling = "released"
    """For soft means: `released` sums the probabilities of the first tokens of all spellings, with and without a
    leading space; `fixed` sums those of whole spellings without a leading space.
    """
    zeroing: PackZeroing | None = None
    """Condition for counting a question with `aggregate=share`: its parents are answered correctly (`direct`), all its
    ancestors are (`recursive`), or its parents still count after zeroing in order (`in_order`, see
    `apply_zeroing_in_order`). Null counts each question on its own.
    """
    images: Literal["mean", "last"] = "mean"
    """Score of a row with several images: the `mean` of their scores, or the `last` score."""

    def __post_init__(self) -> None:
        QuestionMetricConfig.__post_init__(self)
        if self.soft and (self.zeroing is not None or self.form == "reply"):
            raise ConfigError(
                f"question_pack aggregate: {self.aggregate} compares spellings; expected zeroing=null and "
                f"answers=likelihood, got zeroing={self.zeroing} and answers={self.answers}; remove both options, or "
                "use aggregate=share"
            )

    @property
    def soft(self) -> bool:
        """Return True if each question is scored by a probability instead of being right or wrong."""
        return self.aggregate != "share"

    @property
    def score_range(self) -> ScoreRange | None:
        """Lowest and highest score, or None for `soft` scores with released spellings.

        Those are sums of first-token probabilities, which can exceed 1 because spellings may share their first token.
        """
        return None if self.soft and self.spelling == "released" else SHARE_RANGE

    @property
    def compares_letters(self) -> bool:
        """Return True if the likelihoods of the choices' letters are compared; a soft mean uses spellings instead."""
        return bool(self.letters) and self.form == "likelihood" and not self.soft

    @property
    def roles(self) -> dict[str, str]:
        return {"model": self.model} if self.form == "likelihood" else {"model": self.model, "matcher": self.matcher}

    def complete_options(self, profile_of: Callable[[str], VqaProfile]) -> "QuestionPackConfig":
        """Return the metric with its VQA model's defaults; raise ConfigError if the model cannot give a soft mean."""
        kind = profile_of(self.model)
        if kind.compares and self.soft:
            raise ConfigError(
                f"question_pack model: the model for role {self.model!r} is a {kind.name} model, which compares "
                "choices and cannot score a single answer; use another VQA model, or aggregate=share"
            )
        return QuestionMetricConfig.complete_options(self, profile_of)

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(0, words)

    def explain_pack_refusal(self, choices: Collection[int]) -> str | None:
        """Return the reason why questions with these numbers of choices cannot be scored; None if they can.

        A soft mean requires exactly one choice, the correct answer. `aggregate=share` requires at least two choices.
        """
        if self.soft and set(choices) - {1}:
            return f"aggregate={self.aggregate} sums the spellings of one answer; use aggregate=share"
        if not self.soft and min(choices, default=2) < 2:
            return "aggregate=share takes the likeliest of several choices; use another aggregate, or a judge"
        return None

    def list_question_options(self) -> dict[str, Any]:
        return {}

    def list_answer_options(self) -> dict[str, Any]:
        asked = QuestionMetricConfig.list_answer_options(self)
        return {**asked, "spelling": self.spelling} if self.soft else asked

    def list_score_options(self) -> dict[str, Any]:
        own = {"aggregate": self.aggregate, "images": self.images}
        if self.soft:
            return {**own, "spelling": self.spelling}
        return {**own, "zeroing": self.zeroing, **({} if self.form == "reply" else {"reduction": self.reduction})}

    def get_answer_choices(self, choices: Sequence[str]) -> tuple[str, ...]:
        """Return the choices or, for a soft mean, all spellings of the correct answer."""
        if self.soft:
            return tuple(list_spellings(choices[0], self.spelling))
        return QuestionMetricConfig.get_answer_choices(self, choices)

    def score(self, evidence: Evidence) -> Scored:
        answered = evidence.answered
        if self.soft:
            scored = average_elements([_score_spellings(answer, self.spelling) for answer in answered])
            if self.aggregate == "soft_mean" or scored.score is None:
                return scored
            scores = [each.score for each in scored.elements or () if each.score is not None]
            product = 0.0 if 0.0 in scores else math.exp(math.fsum(map(math.log, scores)) / len(scores))
            return scored._replace(score=product)
        given = [
            answer.chosen if self.form == "reply" else find_likeliest_choice(answer, self.reduction)
            for answer in answered
        ]
        right = {
            answer.question.question_id: choice == answer.question.answer
            for answer, choice in zip(answered, given, strict=True)
        }
        parents = {answer.question.question_id: answer.question.parents for answer in answered}
        holds: Mapping[str, bool] = right
        if self.zeroing == "in_order":
            holds = apply_zeroing_in_order(right, parents)
        elif self.zeroing is not None:
            holds = apply_zeroing(right, parents, self.zeroing)
        return average_elements(
            [
                make_element(answer, given=choice, score=float(holds[answer.question.question_id]))
                for answer, choice in zip(answered, given, strict=True)
            ]
        )

    def combine_images(self, images: Sequence[Scored]) -> Scored:
        """Return the mean over a row's images, or the score of its last image."""
        return images[-1] if self.images == "last" else average_images(images)


def apply_zeroing_in_order(right: Mapping[str, bool], parents: Mapping[str, Sequence[str]]) -> dict[str, bool]:
    """Return, for each question, True if it still counts after zeroing in order and in place, as in DPG-Bench's code.

    A parent that was zeroed earlier zeroes its children too. A parent that comes after its children affects them only
    by its own answer.
    """
    holds = dict(right)
    for name, needed in parents.items():
        holds[name] = holds[name] and all(holds.get(parent, True) for parent in needed)
    return holds


def list_spellings(answer: str, spelling: Spelling) -> list[str]:
    """Return the accepted spellings of an answer: as written, capitalised and, for numbers up to ten, in digits.

    `released` adds each spelling with a leading space. The answer yes is spelled `Yes` and `yes`, as in GenEval2.
    """
    digits = filter(None, [DIGITS_BY_WORD.get(answer.lower())])
    words = ("Yes", "yes") if answer.lower() == "yes" else (answer, answer.capitalize(), *digits)
    forms = SPACING_FORMS if spelling == "released" else SPACING_FORMS[:1]
    return list(dict.fromkeys(form.format(word) for word in words for form in forms))


def _score_spellings(answered: Answered, spelling: Spelling) -> Element:
    """Return an element whose score is the probability that the reply begins with one of the spellings.

    The end-of-turn token is ignored.
    """
    logs = [
        compute_log_likelihood(tokens, "first") if spelling == "released" else math.fsum(tokens[:-1])
        for tokens in answered.token_logprobs
    ]
    return make_element(answered, given=None, score=math.fsum(map(math.exp, logs)))
