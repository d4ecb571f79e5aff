"""VIEScore: a model that sees the image rates semantic consistency and perceptual quality (Ku et al. 2024)."""

import json
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    InspectionMetricConfig,
    JudgeQuestion,
    Scale,
    fill_template,
    map_ratings,
)
from plumbline.operators.metrics.metric import Rating, ScoreRange, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing, WrittenQuestion

SEMANTIC_TEMPLATE, PERCEPTUAL_TEMPLATE = "viescore_semantic", "viescore_perceptual"
CONSISTENCY_SCALES = (Scale("semantic_consistency", 0, 10),)
QUALITY_SCALES = (Scale("naturalness", 0, 10), Scale("artifacts", 0, 10))
RatedPart = Literal["overall", "consistency", "quality"]
RELEASED_MAX_TOKENS, RELEASED_TEMPERATURE, TRIES = 1400, 1.0, 2
"""Values from the release. mllm_tools/openai.py sends no temperature, so services use 1. After TRIES tries,
VIEScore.evaluate guesses a number at random; here, the row gets an error instead.
"""
REPLY_DELIMITER = "||V^=^V||"


class ParsedReply(NamedTuple):
    """The scores and reasoning in a reply to the published prompts."""

    scores: tuple[float, ...]
    reasoning: str


@dataclass(frozen=True, slots=True)
class VieScoreRelease(Release):
    """VIEScore's published prompts for text-to-image generation, without examples.

    They are read from TIGER-AI-Lab/VIEScore at 2cbea4e.
    """

    repository: ClassVar[str] = "TIGER-AI-Lab/VIEScore"
    marker_file: ClassVar[str] = "viescore/vie_prompts.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    temperature: ClassVar[float] = RELEASED_TEMPERATURE
    rules: ClassVar[tuple[str, str]] = ("_prompts_0shot_one_image_gen_rule", "_prompts_0shot_t2i_rule_SC")
    placeholder: ClassVar[str] = "<prompt>"
    rated: ClassVar[tuple[str, ...]] = ("semantic_consistency",)
    quality_view: ClassVar[int] = 0
    tries: ClassVar[int] = TRIES
    consistency: str
    quality: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        names = ("_context_no_delimit", *cls.rules, "_prompts_0shot_rule_PQ")
        context, shown, follows, quality = map(code.read_plain_string, names)
        return cls(f"{context}\n{shown}\n{follows}", f"{context}\n{quality}")

    def inspect(self, prompt: str, sampling: ReplySampling) -> Writing[Verdict]:
        """Ask for ratings and reasons as upstream's VIEScore.evaluate does, and return them as a verdict.

        Only the lowest rating of each kind counts.
        """
        texts = self.consistency.replace(self.placeholder, prompt), self.quality
        requests = [
            sampling.make_request(text, stop=())._replace(image_at=len(text), view=view)
            for text, view in zip(texts, (0, self.quality_view), strict=True)
        ]
        replies = yield from ask_as_released(requests, [read_scores] * len(requests), tries=self.tries)
        names = (self.rated, [scale.name for scale in QUALITY_SCALES])
        ratings = [rating for each in zip(names, replies, strict=True) for rating in _name_scores(*each)]
        return Verdict(tuple(ratings), " ".join(reply.reasoning for reply in replies if reply.reasoning))


def _name_scores(names: Sequence[str], reply: ParsedReply) -> list[Rating]:
    last = len(names) - 1
    values = [*reply.scores[:last], min(reply.scores[last:], default=reply.scores[0])]
    return [Rating(name, value) for name, value in zip(names, values, strict=True)]


def read_scores(reply: str) -> ParsedReply:
    """Return the scores and reasoning in a reply, as mllm_output_to_dict does; raise ValueError if there are no scores.

    A reply is an object with the scores and the reasoning, a list of scores, or a single score.
    """
    start, end = reply.find("{"), reply.rfind("}") + 1
    if reply.count(REPLY_DELIMITER) == 2:
        text = reply.split(REPLY_DELIMITER)[1]
    elif start >= 0 and end > 0:
        text = reply[start:end]
    else:
        listed = reply[reply.find("[") : reply.rfind("]") + 1]
        if re.match(r"^\[\d+, ?\d+\]$", listed):
            return ParsedReply(tuple(map(float, json.loads(listed))), "")
        return _check_scores([int(reply)] if 0 <= int(reply) <= 10 else None, "")
    text = text.strip().replace("\n", "")
    try:
        found = json.loads(text)
        scores = found["score"]
    except (ValueError, LookupError, TypeError):
        if not text.endswith("}"):
            raise ValueError("expected an object") from None
        found = json.loads(repair_json(text))
        scores = found["score"]
    return _check_scores(scores if isinstance(scores, list) else [scores], found.get("reasoning"))


def _check_scores(scores: Any, reasoning: Any) -> ParsedReply:
    if not scores or not all(type(score) in (int, float) and 0 <= score < math.inf for score in scores):
        raise ValueError(f"expected scores of 0 or more, found {scores}")
    return ParsedReply(tuple(map(float, scores)), reasoning if isinstance(reasoning, str) else "")


def repair_json(text: str) -> str:
    """Return a JSON object's text with its keys and strings quoted, and its numbers put into lists (fix_json).

    Upstream uses a single regular expression for this, which takes time quadratic in the length of the text.
    """
    text = re.sub(r"\b(\w+):", r'"\1":', text)
    repaired, done = [], 0
    while (start := text.find('"', done)) >= 0 and (colon := text.find('":', start + 1)) >= 0:
        end = re.compile("[,}]").search(text, colon + 2)
        if end is None:
            break
        value = text[colon + 2 : end.start()].strip()
        if re.match(r"^-?\d+(\.\d+)?$", value):
            value = f"[{value}]"
        elif not re.match(r"^(true|false|null)$", value, re.IGNORECASE):
            value = f'"{value}"'
        repaired += [text[done:start], f"{text[start : colon + 1]}: {value}", end[0]]
        done = end.end()
    return "".join([*repaired, text[done:]])


@dataclass(frozen=True, kw_only=True)
class TwoQuestionConfig(InspectionMetricConfig):
    """Base class of metrics whose judge rates both the consistency with the prompt and the quality of the image."""

    calls_per_image: ClassVar[int] = 2
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    part: RatedPart = "overall"
    """The score to report. `consistency`: the lowest rating for the first question; `quality`: the lowest rating for
    the second; `overall`: the square root of their product. The judge is asked the same questions for all three.
    """
    consistency: ClassVar[Sequence[Scale]]
    """Rating scales of the first question."""

    @abstractmethod
    def judge_questions(self, prompt: str) -> Sequence[JudgeQuestion]: ...

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask the judge two questions, in our wording or the published one; return one verdict with all ratings."""
        release = self.find_release(VieScoreRelease)
        if release is not None:
            sampling = ReplySampling(RELEASED_MAX_TOKENS, RELEASED_TEMPERATURE, self.seed)
            return (yield from release.inspect(prompt, sampling))
        return (yield from self.request_combined_verdict(self.judge_questions(parsing.collapse_spaces(prompt))))

    def list_score_options(self) -> dict[str, Any]:
        return {} if self.part == "overall" else {"part": self.part}

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return the lowest consistency rating, the lowest quality rating, or the square root of their product.

        The result is from 0 to 10.
        """
        rated = map_ratings(ratings)
        consistency, quality = (
            min(rated[scale.name] for scale in scales) for scales in (self.consistency, QUALITY_SCALES)
        )
        parts = {"consistency": consistency, "quality": quality, "overall": math.sqrt(consistency * quality)}
        return parts[self.part]


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreConfig(TwoQuestionConfig):
    kind: Literal["viescore"] = "viescore"
    story: ClassVar[str] = (
        "lets a model that sees the image rate how well it follows the prompt and how good it looks, and takes the "
        "square root of the product"
    )
    consistency = CONSISTENCY_SCALES
    releases: ClassVar[tuple[type[Release], ...]] = (VieScoreRelease,)
    templates: ClassVar[tuple[str, ...]] = (SEMANTIC_TEMPLATE, PERCEPTUAL_TEMPLATE)

    def judge_questions(self, prompt: str) -> Sequence[JudgeQuestion]:
        """Return the judge's two questions: on consistency with the prompt, and on the quality of the image alone."""
        semantic = fill_template(self.get_template_text(SEMANTIC_TEMPLATE), prompt=prompt)
        return JudgeQuestion(semantic, CONSISTENCY_SCALES), JudgeQuestion(
            self.get_template_text(PERCEPTUAL_TEMPLATE), QUALITY_SCALES
        )
