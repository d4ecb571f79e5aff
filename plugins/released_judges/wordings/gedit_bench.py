"""GEditBench v2's questions about two edits of an image (ZhangqiJiang07/GEditBench_v2 at 82bc00e)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import yaml  # type: ignore[import-untyped]

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import iterate_objects, read_rationale
from plumbline.operators.metrics.judges.pairwise import P_FIRST_BY_CHOICE, Choice, PairAnswer, PairRelease
from plumbline.operators.metrics.wording import Checkout
from plumbline.operators.metrics.writing import ReplySampling
from plumbline.operators.models.calls import Request
from plumbline.plugins.released_judges.wordings.rational_rewards import place_images

INSTRUCTION_MARK = "{{ instruction }}"
IMAGE_SOURCES: tuple[tuple[str, int | None], ...] = (("input_image", None), ("edited_images", 0), ("edited_images", 1))
"""Sources of the images in the order of the question: the image before the edits, and the two edits."""
AFTER_IMAGE = "\n"
"""Separator that the release puts after an image, before further text (primitives/prompt_adapters.py)."""
WINNERS: Mapping[str, Choice] = {
    **dict.fromkeys(("image_a", "image a", "a"), "first"),
    **dict.fromkeys(("image_b", "image b", "b"), "second"),
    **dict.fromkeys(("tie", "equal", "both", "none"), "tie"),
}
"""Values of "winner" in a reply, as components/modules/judge.py reads them."""


@dataclass(frozen=True, slots=True)
class VisualConsistency(PairRelease):
    """The question for PVC-Judge: which edit keeps more of what the instruction does not mention."""

    repository: ClassVar[str] = "ZhangqiJiang07/GEditBench_v2"
    marker_file: ClassVar[str] = "src/prompts/assets/vlm/assessment/visual_consistency/pairwise/v1.yaml"
    compares_edits: ClassVar[bool] = True
    temperature: ClassVar[float] = 0.7
    max_tokens: ClassVar[int] = 2048
    tries: ClassVar[int] = 4
    images: ClassVar[tuple[tuple[str, int | None], ...]] = IMAGE_SOURCES
    system: str
    parts: tuple[str, ...]
    """Texts before the first image, between the images, and after the last one."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        asset = _parse_asset(checkout, cls.marker_file)
        system, (texts, images) = asset.get("system_prompt"), _list_blocks(asset.get("user_prompt"))
        named = sum(text.count(INSTRUCTION_MARK) for text in texts)
        if not isinstance(system, str) or tuple(images) != cls.images or len(texts) != len(images):
            raise checkout.make_checkout_error(cls.marker_file, f"is not a question about {len(cls.images)} images")
        if named != cls.compares_edits:
            raise checkout.make_checkout_error(cls.marker_file, f"names the instruction {named} times")
        # jinja2, which the release uses, drops one line break at the end of each text
        before, *others = (text.removesuffix("\n") for text in texts)
        return cls(system, (before, *(AFTER_IMAGE + text for text in others), ""))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        text, places = place_images([part.replace(INSTRUCTION_MARK, prompt) for part in self.parts])
        return sampling.make_request(text, stop=())._replace(system=self.system, image_at=places)

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the winner in a reply's JSON object; raise ValueError if it has none."""
        found = next((each for each in iterate_objects(reply) if "winner" in each), None)
        if found is None:
            raise ValueError('expected a JSON object with a "winner", found none')
        choice = WINNERS.get(str(found["winner"]).strip().lower())
        if choice is None:
            value = parsing.shorten(str(found["winner"]))
            raise ValueError(f'expected the "winner" Image A, Image B or Tie, found {value}')
        return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(found.get("reasoning")) or None)


class InstructionFollowing(VisualConsistency):
    """The question that GEditBench v2 asks GPT-4o: which edit follows the instruction."""

    __slots__ = ()
    marker_file: ClassVar[str] = "src/prompts/assets/vlm/assessment/instruction_following/pairwise/v1.yaml"


class VisualQuality(VisualConsistency):
    """GEditBench v2's question for GPT-4o: which edit looks better, judged without the instruction or the source."""

    __slots__ = ()
    compares_edits: ClassVar[bool] = False
    images: ClassVar[tuple[tuple[str, int | None], ...]] = IMAGE_SOURCES[1:]
    marker_file: ClassVar[str] = "src/prompts/assets/vlm/assessment/visual_quality/pairwise/v1.yaml"


def _parse_asset(checkout: Checkout, file: str) -> Mapping[str, Any]:
    try:
        asset = yaml.safe_load(checkout.read_text(file))
    except (yaml.YAMLError, RecursionError) as error:
        raise checkout.make_checkout_error(file, f"is not YAML ({type(error).__name__})") from error
    if not isinstance(asset, dict):
        raise checkout.make_checkout_error(file, "has no keys")
    return asset


def _list_blocks(blocks: Any) -> tuple[list[str], list[tuple[Any, Any]]]:
    """Return the texts of a question, and the source and index of its images."""
    texts: list[str] = []
    images: list[tuple[Any, Any]] = []
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif isinstance(block, dict) and isinstance(block.get("image"), dict):
            images.append((block["image"].get("source"), block["image"].get("index")))
    return texts, images
