"""LLMScore's release (YujieLu10/LLMScore at 8b898e3): a description of an image, and a judge's verdict on it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.answered import Rating, Verdict
from plumbline.operators.metrics.wordings.checkout import Checkout, Text, fill_slots
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing
from plumbline.operators.models.calls import Region

DESCRIPTOR = "llm_descriptor/visual_descriptor.py"
TEMPERATURE = 1.0
"""The release sends none, and services then use this value."""
MAX_ERRORS = 99
"""The release asks for 0 to 9 and accepts any number; T2IScoreScore's judge counted up to 36."""


@dataclass(frozen=True, slots=True)
class LlmScoreRelease(Release):
    """The prompts in llm_descriptor and llm_evaluator."""

    repository: ClassVar[str] = "YujieLu10/LLMScore"
    mark: ClassVar[str] = "llm_evaluator/evaluation_instruction.py"
    decides: ClassVar[tuple[str, ...]] = ("temperature", "description_temperature", "replies", "scale")
    temperature: ClassVar[float] = TEMPERATURE
    describing: Text
    judging: Text
    scores: str
    """Instruction for a rating and a number of errors."""
    rule: str
    """Instruction for four counts, which the release contains but never sends."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        scores, rule = (code.plain(f"self.evaluation_instruction_{number}") for number in (1, 2))
        return cls(checkout.python(DESCRIPTOR).text("prompt"), code.text("prompt"), scores, rule)

    def describe(
        self, caption: str, regions: Iterable[Region], width: int, height: int, sampling: ReplySampling
    ) -> Writing[str]:
        """Describe an image (generate_multi_granualrity_description, whose caller swaps its arguments)."""
        boxes = "".join(f"{region.label}: [{region.x1}, {region.y1}, {region.x2}, {region.y2}]; " for region in regions)
        values = {"local_description": caption, "global_description": boxes}
        text = fill_slots(self.describing, {**values, "width": str(width), "height": str(height)})
        request = sampling._replace(temperature=TEMPERATURE).request(text, stop=())
        (description,) = yield from ask_as_released([request], [_one_line])
        return description

    def judge(self, prompt: str, description: str, *, by_rule: bool, sampling: ReplySampling) -> Writing[Verdict]:
        """Ask for a verdict on a description (generate_score_with_rationale)."""
        instruction = self.rule if by_rule else self.scores
        values = {"text_prompt": prompt, "description": description, "self.evaluation_instruction_1": instruction}
        request = sampling._replace(temperature=TEMPERATURE).request(fill_slots(self.judging, values), stop=())
        (verdict,) = yield from ask_as_released([request], [_read_counts if by_rule else _read_scores])
        return verdict


def _one_line(reply: str) -> str:
    if not reply.strip():
        raise ValueError("it is empty")
    return reply.strip().replace("\n", " ")


def _lines(reply: str) -> list[str]:
    return [line for line in reply.split("\n") if line]


def _read_scores(reply: str) -> Verdict:
    overall, errors, *reasons = _lines(reply)[:4]
    rating, counted = int(overall), int(errors)
    if len(reasons) < 2 or not 1 <= rating <= 100 or not 0 <= counted <= MAX_ERRORS:
        expected = f"a rating (1 to 100), a number of errors (0 to {MAX_ERRORS}) and two explanations, a line each"
        raise ValueError(f"expected {expected}")
    return Verdict((Rating("rating", rating), Rating("errors", counted)), " ".join(reasons))


def _read_counts(reply: str) -> Verdict:
    *counts, rationale = _lines(reply)
    objects, matched, attributes, attributes_matched = map(int, counts)
    if objects < 1 or min(matched, attributes, attributes_matched) < 0:
        raise ValueError("expected four counts, the first above 0, and an explanation, a line each")
    named = {"objects": objects, "objects_matched": matched, "attributes": attributes}
    ratings = {**named, "attributes_matched": attributes_matched}
    return Verdict(tuple(Rating(name, value) for name, value in ratings.items()), rationale)
