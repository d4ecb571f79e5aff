"""WISE_Verified's release (PKU-YuanGroup/WISE at eb51174): a protocol for judging whether an image is correct."""

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, Text, ask_as_released, fill_slots
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS, MAX_REQUEST_TRIES = 500, 3
"""Maximum number of tokens from _chat_completion_via_vllm, and maximum number of tries from MAX_EXTRACT_RETRIES.

The temperature is 0 in _chat_completion_via_vllm.
"""


@dataclass(frozen=True, slots=True)
class WiseRelease(Release):
    """WISE_Verified's release, whose protocol for judges is in vllm_eval.py."""

    repository: ClassVar[str] = "PKU-YuanGroup/WISE"
    marker_file: ClassVar[str] = "vllm_eval.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    system: str
    protocol: Text

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        system, protocol = code.find_returned("build_evaluation_messages", "text", 2)
        return cls(fill_slots(system, {}), protocol)

    def inspect(self, prompt: str, explanation: str, seed: int) -> Writing[Verdict]:
        """Ask for a score of 1 or 0, like `evaluate_image` in the release."""
        text = fill_slots(self.protocol, {"prompt_data['Prompt']": prompt, "prompt_data['Explanation']": explanation})
        request = ReplySampling(MAX_TOKENS, seed=seed).request(text, stop=())
        request = request._replace(system=self.system, image_at=len(text))
        (score,) = yield from ask_as_released([request], [_parse_reply], tries=MAX_REQUEST_TRIES)
        return Verdict((Rating("score", score),), "")


def _remove_thoughts(reply: str) -> str:
    """Remove the thoughts from a reply.

    Only the text up to the last end tag is searched. Otherwise, every later start tag would cause another search to the
    end of the reply.
    """
    thoughts, end, rest = reply.rpartition("</think>")
    answer = rest.lstrip()
    thoughts += end + rest[: len(rest) - len(answer)]
    answer = re.sub(r"<think>.*?</think>\s*", "", thoughts, flags=re.DOTALL) + answer
    return re.sub(r"</think>\s*", "", answer).strip()


def _parse_reply(reply: str) -> float:
    """Remove the thoughts from a reply, and return the score in it, like `extract_scores` in the release."""
    answer = _remove_thoughts(reply)
    named = re.search(r"\*{0,2}Score\*{0,2}\s*(?::\s*)?([01])\b", answer, re.IGNORECASE)
    alone = [text for line in answer.split("\n") if (text := line.strip()) in ("0", "1")]
    if named is None and len(alone) != 1:
        raise ValueError("expected `Score: 0` or `Score: 1`, found neither or several")
    return float(named[1] if named else alone[0])
