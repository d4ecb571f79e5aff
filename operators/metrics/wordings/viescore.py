"""VIEScore's release (TIGER-AI-Lab/VIEScore at 2cbea4e): rules without examples, which GEdit-Bench has copied."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from plumbline.operators.metrics.answered import Rating, Verdict
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS, TEMPERATURE, TRIES = 1400, 1.0, 2
"""Values of mllm_tools/openai.py, which sends no temperature, so that services use 1, and of VIEScore.evaluate, which
guesses a number at random after this many tries; here the row then has an error."""
DELIMITER = "||V^=^V||"


class ParsedReply(NamedTuple):
    """The contents of a reply."""

    scores: tuple[float, ...]
    reasoning: str


@dataclass(frozen=True, slots=True)
class VieScoreRelease(Release):
    """The rules for images made from a prompt (viescore/vie_prompts.py)."""

    repository: ClassVar[str] = "TIGER-AI-Lab/VIEScore"
    mark: ClassVar[str] = "viescore/vie_prompts.py"
    decides: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    temperature: ClassVar[float] = TEMPERATURE
    rules: ClassVar[tuple[str, str]] = ("_prompts_0shot_one_image_gen_rule", "_prompts_0shot_t2i_rule_SC")
    place: ClassVar[str] = "<prompt>"
    rated: ClassVar[tuple[str, ...]] = ("semantic_consistency",)
    quality_view: ClassVar[int] = 0
    tries: ClassVar[int] = TRIES
    consistency: str
    quality: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        names = ("_context_no_delimit", *cls.rules, "_prompts_0shot_rule_PQ")
        context, shown, follows, quality = map(code.plain, names)
        return cls(f"{context}\n{shown}\n{follows}", f"{context}\n{quality}")

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask for the ratings and reasons, sampled as in the release. The lowest rating counts."""
        return (yield from self.rate(prompt, ReplySampling(MAX_TOKENS, TEMPERATURE, seed)))

    def rate(self, prompt: str, sampling: ReplySampling) -> Writing[Verdict]:
        """Ask for the ratings and reasons with this sampling (VIEScore.evaluate)."""
        texts = self.consistency.replace(self.place, prompt), self.quality
        requests = [
            sampling.request(text, stop=())._replace(image_at=len(text), view=view)
            for text, view in zip(texts, (0, self.quality_view), strict=True)
        ]
        consistency, quality = yield from ask_as_released(requests, [read_scores] * len(requests), tries=self.tries)
        ratings = _name_scores(self.rated, consistency.scores) + _name_scores(
            ("naturalness", "artifacts"), quality.scores
        )
        return Verdict(ratings, " ".join(filter(None, (consistency.reasoning, quality.reasoning))))


def _name_scores(names: Sequence[str], scores: Sequence[float]) -> tuple[Rating, ...]:
    """Return ratings with these names whose minimum is the minimum of the scores, however many there are."""
    given = [*scores[: len(names) - 1], min(scores[len(names) - 1 :], default=scores[0])]
    return tuple(Rating(name, value) for name, value in zip(names, given, strict=True))


def read_scores(reply: str) -> ParsedReply:
    """Return the scores of a reply in an object, in a list or alone (mllm_output_to_dict).

    Raises ValueError if there are none.
    """
    text = _object(reply)
    if text is None:
        listed = reply[reply.find("[") : reply.rfind("]") + 1]
        if re.match(r"^\[\d+, ?\d+\]$", listed):
            return ParsedReply(tuple(map(float, json.loads(listed))), "")
        return _check_scores([int(reply)] if 0 <= int(reply) <= 10 else None, "")
    try:
        found = json.loads(text)
        scores = found["score"]
    except (ValueError, LookupError, TypeError):
        if not text.endswith("}"):
            raise ValueError("expected an object") from None
        found = json.loads(_repair(text))
        scores = found["score"]
    return _check_scores(scores if isinstance(scores, list) else [scores], found.get("reasoning"))


def _object(reply: str) -> str | None:
    """Return the text of the object in a reply, on one line."""
    if reply.count(DELIMITER) == 2:
        return reply.split(DELIMITER)[1].strip().replace("\n", "")
    start, end = reply.find("{"), reply.rfind("}") + 1
    return None if start < 0 or end == 0 else reply[start:end].strip().replace("\n", "")


def _check_scores(scores: Any, reasoning: Any) -> ParsedReply:
    if not scores or not all(type(score) in (int, float) and 0 <= score < math.inf for score in scores):
        raise ValueError(f"expected scores of 0 or more, found {scores}")
    return ParsedReply(tuple(map(float, scores)), reasoning if isinstance(reasoning, str) else "")


def _repair(text: str) -> str:
    """Return the object with quotes around keys and texts, and numbers in lists (fix_json)."""
    text = re.sub(r"\b(\w+):", r'"\1":', text)
    repaired, done = [], 0
    while (start := text.find('"', done)) >= 0 and (colon := text.find('":', start + 1)) >= 0:
        end = re.compile("[,}]").search(text, colon + 2)
        if end is None:
            break
        member = _quote(text[start : colon + 1], text[colon + 2 : end.start()].strip())
        repaired += [text[done:start], member, end[0]]
        done = end.end()
    return "".join([*repaired, text[done:]])


def _quote(key: str, value: str) -> str:
    if re.match(r"^-?\d+(\.\d+)?$", value):
        value = f"[{value}]"
    elif not re.match(r"^(true|false|null)$", value, re.IGNORECASE):
        value = f'"{value}"'
    return f"{key}: {value}"
