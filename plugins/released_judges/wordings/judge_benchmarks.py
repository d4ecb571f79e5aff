"""The prompts that judge benchmarks use to ask a vision-language model about two images."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import iterate_objects, read_rationale
from plumbline.operators.metrics.judges.pairwise import P_FIRST_BY_CHOICE, Choice, PairAnswer, PairRelease
from plumbline.operators.metrics.wording import Checkout
from plumbline.operators.metrics.writing import ReplySampling
from plumbline.operators.models.calls import Request
from plumbline.plugins.released_judges.wordings.rational_rewards import place_images

VERDICTS: Mapping[str, Choice] = {
    "[[A>B]]": "first",
    "[[A>>B]]": "first",
    "[[B>A]]": "second",
    "[[B>>A]]": "second",
    "[[A=B]]": "tie",
    "[[A=B=Good]]": "tie",
    "[[A=B=Bad]]": "neither",
}
"""Labels of GenAI-Bench (inference.py, parse_response)."""
VERDICT_PATTERN = re.compile(r"\[\[.*\]\]")
IMAGE_MARK_PATTERN = re.compile("<left_image>|<right_image>")


@dataclass(frozen=True, slots=True)
class GenAiBenchPairs(PairRelease):
    """GenAI-Bench's question about two generated images (TIGER-AI-Lab/GenAI-Bench at f0b0334, MIT)."""

    repository: ClassVar[str] = "TIGER-AI-Lab/GenAI-Bench"
    marker_file: ClassVar[str] = "genaibench/templates/image_generation/pairwise.txt"
    max_tokens: ClassVar[int] = 4096
    template: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        template = checkout.read_text(cls.marker_file)
        if IMAGE_MARK_PATTERN.findall(template) != ["<left_image>", "<right_image>"] or "<prompt>" not in template:
            raise checkout.make_checkout_error(
                cls.marker_file, "lacks <prompt>, <left_image> and <right_image>, in this order"
            )
        return cls(template)

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        parts = [part.replace("<prompt>", prompt) for part in IMAGE_MARK_PATTERN.split(self.template)]
        text, places = place_images(parts)
        return sampling.make_request(text, stop=())._replace(image_at=places)

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the first label in double brackets; raise ValueError if there is no label or the label is unknown."""
        found = next(filter(None, map(VERDICT_PATTERN.search, reply.splitlines())), None)
        choice = VERDICTS.get(found[0]) if found is not None else None
        if choice is None:
            label = "none" if found is None else parsing.shorten(found[0])
            raise ValueError(f"expected one of the labels {', '.join(VERDICTS)}, found {label}")
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(reply) or None)


@dataclass(frozen=True, slots=True)
class Mmrb2Pairs(PairRelease):
    """MMRB2's question about two generated images (facebookresearch/MMRB2 at 7ff0552, CC BY-NC 4.0)."""

    repository: ClassVar[str] = "facebookresearch/MMRB2"
    marker_file: ClassVar[str] = "evaluate/generate_judgements/evaluator_apis/llm_judges/evaluation_prompts.py"
    temperature: ClassVar[float] = 1.0
    max_tokens: ClassVar[int] = 2000
    instructions: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.parse_python(cls.marker_file).read_returned_text("get_image_gen_prompt"))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        before = f"{self.instructions}[ORIGINAL PROMPT TO MODEL:]{prompt}[RESPONSE A:]"
        text, places = place_images([before, "[RESPONSE B:]", ""])
        return sampling.make_request(text, stop=())._replace(image_at=places)

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the better response, A or B; raise ValueError if a reply has no JSON object with either."""
        found = next((each for each in iterate_objects(reply) if "better_response" in each), None)
        if found is None:
            raise ValueError('expected a JSON object with a "better_response", found none')
        choice: Choice | None = {"A": "first", "B": "second"}.get(str(found["better_response"]))  # type: ignore[assignment]
        if choice is None:
            value = parsing.shorten(str(found["better_response"]))
            raise ValueError(f'expected the "better_response" A or B, found {value}')
        reasons = found.get("reasoning")
        summary = reasons.get("comparison_summary") if isinstance(reasons, dict) else reasons
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(summary) or None)


class Mmrb2EditPairs(Mmrb2Pairs):
    """MMRB2's question about two edits of an image."""

    __slots__ = ()
    compares_edits: ClassVar[bool] = True

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.parse_python(cls.marker_file).read_returned_text("get_image_edit_prompt"))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        before = f"{self.instructions}[ORIGINAL PROMPT TO MODEL:]{prompt}"
        text, places = place_images([before, "[RESPONSE A:]", "[RESPONSE B:]", ""])
        return sampling.make_request(text, stop=())._replace(image_at=places)
