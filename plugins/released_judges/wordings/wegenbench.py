"""The wording of WeGenBench's judge of consistency (WeChatCV/WeGenBench at 87c3c76, Apache-2.0)."""

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.judges.judge import read_rationale
from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS = 1024
"""Token limit of a critique in infer_demo.py, which samples at temperature 0."""
MIN_SCORE, MAX_SCORE = 1, 10
_SCORE_PATTERN = re.compile(r"得分[：:]\s*(\d+)\s*分")


@dataclass(frozen=True, slots=True)
class ConsistencyRating(Release):
    """The question for WeGenBench-Consistency-COT: how well an image shows its prompt, less points for each fault."""

    repository: ClassVar[str] = "WeChatCV/WeGenBench"
    marker_file: ClassVar[str] = "evaluation/Consistency/CoT/demo/infer_demo.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    question: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.parse_python(cls.marker_file).read_plain_string("PROMPT"))

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask for a critique of an image, and return its score; the critique is the rationale."""
        request = ReplySampling(MAX_TOKENS, seed=seed).make_request(self.question + prompt, stop=())
        (verdict,) = yield from ask_as_released([request], [_read_critique])
        return verdict


def _read_critique(reply: str) -> Verdict:
    """Return the first score in a critique, as infer_demo.py does; raise ValueError if it is not from 1 to 10."""
    found = _SCORE_PATTERN.search(reply)
    if found is None or not MIN_SCORE <= int(found[1]) <= MAX_SCORE:
        raise ValueError(f"expected 得分：NUMBER分 with a number from {MIN_SCORE} to {MAX_SCORE}, found none")
    return Verdict((Rating("consistency", float(found[1])),), read_rationale(reply))
