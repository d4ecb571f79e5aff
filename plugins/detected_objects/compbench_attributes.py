"""T2I-CompBench's metrics without a detector: attributes by BLIP, and actions by CLIP (Huang et al. 2023)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Scored, make_element
from plumbline.operators.metrics.questions.question_metric import AnswerForm, QuestionMetricConfig
from plumbline.operators.metrics.questions.vqascore import compute_yes_share
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.plugins.detected_objects.parsed_prompts import describe_pipeline, parse_prompt

MAX_PHRASES = 8
"""Maximum number of noun phrases of a prompt that are asked about (the release's default)."""
NO_PHRASE_ERROR = RowError("no_noun_phrase", "the prompt has no noun phrase, such as 'a red cat'; leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompbenchAttributesConfig(QuestionMetricConfig):
    """Options for BLIP-VQA, T2I-CompBench's metric of attributes.

    Source: Karine-Huang/T2I-CompBench, `BLIPvqa_eval/BLIP_vqa.py` at 34134bd and `models/blip_vqa.py` at 7710d05.
    """

    kind: Literal["compbench_attributes"] = "compbench_attributes"
    story: ClassVar[str] = (
        "asks a model about each noun phrase of the prompt, such as “a red cat?”, and multiplies the probabilities of "
        "“yes”"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "answers", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("answers", "questions")
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood",)
    takes_letters: ClassVar[bool] = False
    model: str = "blip_vqa"
    """Role of the VQA model."""
    parser: str = "en_core_web_sm"
    """spaCy pipeline that finds the noun phrases (the extra parse)."""

    def list_question_options(self) -> dict[str, Any]:
        """Return the parser and its version; raise ConfigError if it is not installed."""
        return {"phrases": MAX_PHRASES, **describe_pipeline(self.parser)}

    def list_score_options(self) -> dict[str, Any]:
        return {}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Estimate a question for every second content word, and no call of a writer."""
        return CallEstimate(0, words / 2)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion] | RowError]:
        """Return a question for each noun phrase, or an error if there is none; no model is needed for this."""
        yield from ()
        phrases = parse_prompt(prompt, self.parser).noun_phrases[:MAX_PHRASES]
        return [make_phrase_question(place, phrase, prompt) for place, phrase in enumerate(phrases)] or NO_PHRASE_ERROR

    def score(self, evidence: Evidence) -> Scored:
        """Return the product, over the noun phrases, of P(yes) / (P(yes) + P(no))."""
        elements = []
        for answer in evidence.answered:
            yes, no = answer.token_logprobs
            elements.append(make_element(answer, given=None, score=compute_yes_share([yes], [no])))
        product = math.prod(element.score or 0.0 for element in elements)
        return Scored(product, tuple(elements), n_questions=len(elements))


def make_phrase_question(place: int, phrase: str, prompt: str) -> WrittenQuestion:
    """Return the question about a noun phrase, which is number `place` in the prompt."""
    located = parsing.find_words(phrase, prompt) or (None, None)
    return WrittenQuestion(str(place), f"{phrase}?", parsing.YES_NO, "yes", "attribute", phrase, *located)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompbenchActionConfig(ClipScoreConfig):
    """Options for the part of T2I-CompBench's 3-in-1 that compares images by CLIP with prompts without adjectives.

    Source: Karine-Huang/T2I-CompBench, `CLIPScore_eval/CLIP_similarity.py` at 7710d05, with its option `complex`.
    """

    kind: Literal["compbench_action"] = "compbench_action"  # type: ignore[assignment]
    story: ClassVar[str] = "compares the whole image by CLIP with the prompt without its adjectives"
    parser: str = "en_core_web_sm"
    """spaCy pipeline that finds the adjectives (the extra parse)."""

    def list_similarity_options(self) -> dict[str, str]:
        """Return the options of CLIPScore, and the parser with its version.

        Raise ConfigError if the parser is not installed.
        """
        return {**ClipScoreConfig.list_similarity_options(self), **describe_pipeline(self.parser)}

    def text(self, prompt: str) -> str:
        """Return the prompt without its adjectives, as CLIPScore compares it with images."""
        return ClipScoreConfig.text(self, parse_prompt(prompt, self.parser).without_adjectives)
