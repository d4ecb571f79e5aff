"""Prompts of UnifiedReward's judges (CodeGoat24/UnifiedReward at ff6f520, MIT), each read from its own file."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar, Self

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import iterate_objects, read_rationale
from plumbline.operators.metrics.judges.pairwise import P_FIRST_BY_CHOICE, Choice, PairAnswer, PairRelease
from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, Slot, TemplateText, ask_as_released, fill_slots
from plumbline.operators.metrics.writing import ReplySampling, Writing
from plumbline.operators.models.calls import Request

REPOSITORY = "CodeGoat24/UnifiedReward"
MAX_TOKENS = 4096
"""Token limit from vllm_qwen/vllm_request.py, which also sends `do_sample: False`; so the temperature is 0."""
SENTENCES: Mapping[str, Choice] = {
    "Image 1 is better": "first",
    "Image 2 is better": "second",
    "Both images are equally good": "tie",
}
"""Sentences that the release looks for in replies, with the choice that each one expresses."""
WINNERS: Mapping[str, Choice] = {"image 1": "first", "image 2": "second"}
ASPECTS = ("Alignment", "Coherence", "Style")
"""Aspects that UnifiedReward 2.0 rates, in the order of its replies."""
MAX_EDIT_RATING = 25
EDIT_RATINGS = (("editing_success", "overediting"), ("naturalness", "artifacts"))
"""Names of the ratings that UnifiedReward-Edit gives in reply to its first and second question."""
_HEADING_PATTERN = re.compile(r"(\w+) Score(?: \(1-5\))?: ?(.*)")
_IMAGE_PATTERN = re.compile(r"Image ([12]): ?(.*)")
_DECIMAL_PATTERN = re.compile(r"(?<![\d.])-?\d{1,6}\.\d{1,30}")
_NUMBER_PATTERN = re.compile(r"\d{1,3}(?:\.\d{1,30})?")


def read_problem(checkout: Checkout, file: str, slot: str) -> TemplateText:
    """Return the text that is assigned to `problem` in a file; raise ConfigError unless its only slot is `slot`."""
    text = checkout.parse_python(file).read_text("problem")
    found = [part.expression for part in text if isinstance(part, Slot)]
    if found != [slot]:
        raise checkout.make_checkout_error(
            file, f"has a problem with the slots {', '.join(found) or 'none'}, not {slot}"
        )
    return text


@dataclass(frozen=True, slots=True)
class UnifiedRewardPairs(PairRelease):
    """Base class of UnifiedReward's pairwise judges; they see both images before the text."""

    repository: ClassVar[str] = REPOSITORY
    max_tokens: ClassVar[int] = MAX_TOKENS
    text: TemplateText

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(read_problem(checkout, cls.marker_file, "prompt"))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        return sampling.make_request(fill_slots(self.text, {"prompt": prompt}), stop=())


class UnifiedRewardRank(UnifiedRewardPairs):
    """Ranking of two images by UnifiedReward 1 and 2: one sentence of the reply names the better image, or a tie."""

    __slots__ = ()
    marker_file: ClassVar[str] = "benchmark_evaluation/vLLM_evaluation/test_qwen_genai_image.py"

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the conclusion of a reply; raise ValueError if it has none or several different ones."""
        return read_conclusion(reply)


def read_conclusion(reply: str) -> PairAnswer:
    found = [choice for sentence, choice in SENTENCES.items() if sentence in reply]
    if len(found) != 1:
        raise ValueError(f"expected exactly one of {', '.join(map(repr, SENTENCES))}, found {len(found)}")
    return PairAnswer(found[0], P_FIRST_BY_CHOICE[found[0]], read_rationale(reply) or None)


class UnifiedRewardThink(UnifiedRewardPairs):
    """UnifiedReward-Think on Qwen3-VL or Qwen3.5: reasoning with scores for several dimensions, and then the answer."""

    __slots__ = ()
    marker_file: ClassVar[str] = (
        "UnifiedReward-Think/inference_qwen/UnifiedReward-Think-qwen3-inference/qwen3_infer_cot_image_generation.py"
    )

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the conclusion between the last <answer> and </answer>, with the text before it as the reason."""
        before, tag, rest = reply.rpartition("<answer>")
        answer, end, _ = rest.partition("</answer>")
        if not tag or not end:
            raise ValueError("expected the conclusion between <answer> and </answer>, found no such tags")
        reason = read_rationale(before.replace("<think>", "").replace("</think>", ""))
        return read_conclusion(answer)._replace(reason=reason or None)


class UnifiedRewardFlex(UnifiedRewardPairs):
    """UnifiedReward-Flex: a JSON object with dimensions that suit the prompt, a reason and the winner."""

    __slots__ = ()
    marker_file: ClassVar[str] = "UnifiedReward-Flex/flex_pair_rank_image_generation.py"

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the winner in a reply's JSON object; raise ValueError if it is neither Image 1 nor Image 2."""
        found = next((each for each in iterate_objects(reply) if "winner" in each), None)
        if found is None:
            raise ValueError('expected a JSON object with a "winner", found none')
        choice = WINNERS.get(parsing.normalise(str(found["winner"])))
        if choice is None:
            raise ValueError(f'expected the "winner" Image 1 or Image 2, found {parsing.shorten(str(found["winner"]))}')
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(found.get("reason")) or None)


@dataclass(frozen=True, slots=True)
class UnifiedRewardRating(Release):
    """UnifiedReward 2.0's question about one image: alignment, coherence and style from 1 to 5."""

    repository: ClassVar[str] = REPOSITORY
    marker_file: ClassVar[str] = "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("replies", "max_tokens", "temperature")
    text: TemplateText

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(read_problem(checkout, cls.marker_file, "prompt"))

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask for the three ratings, and return each under its aspect's name in lower case."""
        text = fill_slots(self.text, {"prompt": prompt})
        request = ReplySampling(MAX_TOKENS, seed=seed).make_request(text, stop=())
        reader = partial(read_aspects, aspects=ASPECTS, low=1, high=5)
        (found,) = yield from ask_as_released([request], [reader])
        return Verdict(tuple(Rating(aspect.lower(), value) for aspect, value in found.items()), "")


@dataclass(frozen=True, slots=True)
class UnifiedRewardEditRating(Release):
    """UnifiedReward-Edit's two questions about an edit: how well it follows the instruction and how well it is made."""

    repository: ClassVar[str] = REPOSITORY
    marker_file: ClassVar[str] = "UnifiedReward-Edit/edit_pointwise_instruction_following.py"
    quality_file: ClassVar[str] = "UnifiedReward-Edit/edit_pointwise_quality.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("replies", "max_tokens", "temperature")
    following: TemplateText
    quality: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        quality = checkout.parse_python(cls.quality_file).read_plain_string("problem")
        return cls(read_problem(checkout, cls.marker_file, "instruction"), quality)

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask both questions, the first about the source and the edit (view 0), the second about the edit (view 1)."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)
        texts = fill_slots(self.following, {"instruction": prompt}), self.quality
        requests = [sampling.make_request(text, stop=())._replace(view=view) for view, text in enumerate(texts)]
        readers = [partial(_read_edit_ratings, names=names) for names in EDIT_RATINGS]
        verdicts = yield from ask_as_released(requests, readers)
        rationale = " ".join(verdict.rationale for verdict in verdicts if verdict.rationale)
        return Verdict(tuple(rating for verdict in verdicts for rating in verdict.ratings), rationale)


def _read_edit_ratings(reply: str, names: Sequence[str]) -> Verdict:
    """Return the ratings that a reply lists as "score" in a JSON object; raise ValueError if there is no such list."""
    found = next((each for each in iterate_objects(reply) if "score" in each), None)
    scores = found["score"] if found is not None else None
    if found is None or not isinstance(scores, list) or len(scores) != len(names):
        raise ValueError(f'expected a JSON object with a list "score" of {len(names)} numbers, found none')
    read = [read_number(str(score), 0, MAX_EDIT_RATING, name) for name, score in zip(names, scores, strict=True)]
    return Verdict(tuple(map(Rating, names, read)), read_rationale(found.get("reasoning")))


class UnifiedReward2Scores(UnifiedRewardPairs):
    """UnifiedReward 2.0's relative scores: for each aspect, one score per image. The two scores should sum to 1."""

    __slots__ = ()
    marker_file: ClassVar[str] = "inference_qwen/UnifiedReward-2.0-inference/pair_score_image_generation.py"

    def read_reply(self, reply: str) -> PairAnswer:
        """Choose the image with the higher sum of scores; the scores become the reason.

        Raise ValueError unless there is a score from 0 to 1 for each aspect and image.
        """
        shares = _read_shares(reply)
        first, second = (math.fsum(shares[aspect, image] for aspect in ASPECTS) for image in "12")
        is_tie = math.isclose(first, second, abs_tol=1e-9)
        choice: Choice = "tie" if is_tie else "first" if first > second else "second"
        listed = (f"{aspect} {shares[aspect, '1']:.3g} to {shares[aspect, '2']:.3g}" for aspect in ASPECTS)
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], ", ".join(listed))


class UnifiedRewardEditScores(UnifiedRewardPairs):
    """UnifiedReward-Edit as a judge that scores two edits of an image; the image itself comes first."""

    __slots__ = ()
    marker_file: ClassVar[str] = "UnifiedReward-Edit/edit_paiwise_score.py"
    compares_edits: ClassVar[bool] = True

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(read_problem(checkout, cls.marker_file, "instruction"))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        return sampling.make_request(fill_slots(self.text, {"instruction": prompt}), stop=())

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the edit with the higher score; the scores are the reply's first two numbers with a decimal point.

        Raise ValueError if there are fewer than two.
        """
        found = [float(number) for number in _DECIMAL_PATTERN.findall(reply)[:2]]
        if len(found) < 2:
            raise ValueError(f"expected the scores of both edits as numbers with decimals, found {len(found)}")
        first, second = found
        choice: Choice = "tie" if first == second else "first" if first > second else "second"
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(reply) or None)


def _read_shares(reply: str) -> dict[tuple[str, str], float]:
    """Return the scores by aspect and image ("1" or "2")."""
    shares: dict[tuple[str, str], float] = {}
    aspect = ""
    for line in parsing.split_lines(reply):
        if heading := _HEADING_PATTERN.fullmatch(line):
            aspect = heading[1]
        elif scored := _IMAGE_PATTERN.fullmatch(line):
            shares[aspect, scored[1]] = read_number(scored[2], 0, 1, f"image {scored[1]}'s {aspect} score")
    for aspect, image in product(ASPECTS, "12"):
        if (aspect, image) not in shares:
            expected = f"expected two scores for each of {', '.join(ASPECTS)}"
            raise ValueError(f"{expected}, found no image {image}'s {aspect} score")
    return shares


def read_number(text: str, low: float, high: float, name: str) -> float:
    """Return a number from `low` to `high`; raise ValueError for any other text, with `name` in the message."""
    found = float(text) if _NUMBER_PATTERN.fullmatch(text) else math.nan
    if not low <= found <= high:
        raise ValueError(f"expected {name} from {low:g} to {high:g}, found {parsing.shorten(text)}")
    return found


def read_aspects(reply: str, aspects: Sequence[str], low: float, high: float) -> dict[str, float]:
    """Return a number for each aspect, from lines such as `Style Score (1-5): 3.5`; raise ValueError if one is missing.

    If an aspect has several lines, the last one counts.
    """
    headings = filter(None, map(_HEADING_PATTERN.fullmatch, parsing.split_lines(reply)))
    found = {heading[1]: heading[2] for heading in headings}
    if absent := [aspect for aspect in aspects if aspect not in found]:
        raise ValueError(f"expected a line for each of {', '.join(aspects)}, found no {absent[0]} Score")
    return {aspect: read_number(found[aspect], low, high, f"{aspect} Score") for aspect in aspects}
