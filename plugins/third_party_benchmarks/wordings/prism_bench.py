"""PRISM-Bench's published prompts (rongyaofang/prism-bench; the same script is in zlab-princeton/i1 at b58a62f)."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS = 1024
"""Token limit in upstream's class Qwen25VL, which samples at the checkpoint's default temperature, close to 0."""
MESSAGE_NAMES = ("affection", "composition", "entity", "imagination", "style", "text_rendering", "long_text")
"""Tracks in the order of upstream's numbered messages, which start at 1 (get_message_templates). The last message is
about aesthetics.
"""
PROMPT_PLACEHOLDER = "{text_prompt}"


@dataclass(frozen=True, slots=True)
class PrismBenchRelease(Release):
    """PRISM-Bench's published English messages (evaluation/eval_qwen25.py), which are also used for Chinese prompts."""

    repository: ClassVar[str] = "rongyaofang/prism-bench"
    marker_file: ClassVar[str] = "evaluation/eval_qwen25.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    alignment: Mapping[str, str]
    aesthetics: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        messages = [code.read_plain_string(f"messages_{number}") for number in range(1, len(MESSAGE_NAMES) + 2)]
        if not all(PROMPT_PLACEHOLDER in message for message in messages):
            raise checkout.make_checkout_error(
                cls.marker_file, f"has a message without the placeholder {PROMPT_PLACEHOLDER} of the prompt"
            )
        *alignment, aesthetics = messages
        return cls(dict(zip(MESSAGE_NAMES, alignment, strict=True)), aesthetics)

    def request_verdict(self, prompt: str, track: str, seed: int) -> Writing[Verdict]:
        """Ask for the two scores and their reasons in separate requests."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)
        texts = [format_message(message, prompt) for message in (self.alignment[track], self.aesthetics)]
        read = yield from ask_as_released(
            [sampling.make_request(text, stop=()) for text in texts], [_parse_reply] * len(texts)
        )
        ratings = tuple(Rating(name, score) for name, (score, _) in zip(("alignment", "aesthetics"), read, strict=True))
        return Verdict(ratings, " ".join(reason for _, reason in read if reason))


def format_message(message: str, prompt: str) -> str:
    """Insert the prompt into the message, and replace double braces with single braces, like str.format."""
    return prompt.join(part.replace("{{", "{").replace("}}", "}") for part in message.split(PROMPT_PLACEHOLDER))


def _parse_reply(reply: str) -> tuple[float, str]:
    """Return the score and the justification in a reply.

    Upstream does the same in `clean_and_parse_json` and `summarize_results`.
    """
    text = reply.strip().removeprefix("```json").removesuffix("```").strip()
    found: Any = json.loads(re.sub(r",\s*(?=[}\]])", "", text))
    score = found["score"]
    if not isinstance(score, int | float) or not 0 <= score <= 10 or math.isnan(score):
        raise ValueError(f"expected a 'score' from 0 to 10, found {score!r}")
    reason = found.get("justification")
    return float(score), reason if isinstance(reason, str) else ""
