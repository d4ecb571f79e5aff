"""WISE_Verified's published prompts for a judge that decides if an image is correct (PKU-YuanGroup/WISE at eb51174)."""

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, TemplateText, ask_as_released, fill_slots
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS = 500
"""Maximum number of tokens in a reply, as in upstream's _chat_completion_via_vllm, which samples at temperature 0."""
MAX_REQUEST_TRIES = 3
"""Maximum number of requests until a reply can be parsed: upstream's MAX_EXTRACT_RETRIES."""


@dataclass(frozen=True, slots=True)
class WiseRelease(Release):
    """WISE_Verified's published prompts for judges, from vllm_eval.py."""

    repository: ClassVar[str] = "PKU-YuanGroup/WISE"
    marker_file: ClassVar[str] = "vllm_eval.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    system: str
    protocol: TemplateText

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        system, protocol = code.find_returned_texts("build_evaluation_messages", "text", 2)
        return cls(fill_slots(system, {}), protocol)

    def request_verdict(self, prompt: str, explanation: str, seed: int) -> Writing[Verdict]:
        """Ask for a score of 1 or 0, like upstream's `evaluate_image`."""
        text = fill_slots(self.protocol, {"prompt_data['Prompt']": prompt, "prompt_data['Explanation']": explanation})
        request = ReplySampling(MAX_TOKENS, seed=seed).make_request(text, stop=())
        request = request._replace(system=self.system, image_at=len(text))
        (score,) = yield from ask_as_released([request], [_parse_reply], tries=MAX_REQUEST_TRIES)
        return Verdict((Rating("score", score),), "")


def _remove_thoughts(reply: str) -> str:
    """Remove each `<think>...</think>` from a reply, and the end tags that remain.

    Start tags after the last end tag are skipped. Each of them would make the regular expression search to the end of
    the reply, in quadratic time.
    """
    thoughts, end, rest = reply.rpartition("</think>")
    answer = rest.lstrip()
    thoughts += end + rest[: len(rest) - len(answer)]
    answer = re.sub(r"<think>.*?</think>\s*", "", thoughts, flags=re.DOTALL) + answer
    return re.sub(r"</think>\s*", "", answer).strip()


def _parse_reply(reply: str) -> float:
    """Return the score in a reply, ignoring its thoughts, like upstream's `extract_scores`."""
    answer = _remove_thoughts(reply)
    named = re.search(r"\*{0,2}Score\*{0,2}\s*(?::\s*)?([01])\b", answer, re.IGNORECASE)
    alone = [text for line in answer.split("\n") if (text := line.strip()) in ("0", "1")]
    if named is None and len(alone) != 1:
        raise ValueError("expected `Score: 0` or `Score: 1`, found neither or several")
    return float(named[1] if named else alone[0])
