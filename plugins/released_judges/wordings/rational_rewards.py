"""RationalRewards' wordings (TIGER-AI-Lab/RationalRewards at 44e27ab, Apache-2.0): a critique, then ratings."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self

from plumbline.operators.metrics.judges.judge import read_rationale
from plumbline.operators.metrics.judges.pairwise import P_FIRST_BY_CHOICE, Choice, PairAnswer, PairRelease
from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, PythonFile, Release, Slot, TemplateText, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing
from plumbline.operators.models.calls import Request

REPOSITORY = "TIGER-AI-Lab/RationalRewards"
IMAGE_MARK = "<image>"
PROMPT_MARK = "{request}"
MISSING_SCORE = 2.5
"""Score of an aspect that does not apply (scoring.py, fallback): both images get it."""
SUMMARY_MARK = "# Summary:"
REFINEMENT_MARK = "# User Request Refinement"
GENERATION_ASPECTS = ("text_faithfulness", "physical_quality", "text_rendering")
EDIT_ASPECTS = ("text_faithfulness", "image_faithfulness", "physical_quality", "text_rendering")
MIN_RATING, MAX_RATING = 1.0, 4.0
RATING_TOKENS = 2048
"""Token limit of a critique of one image."""
HEADINGS = {
    "text_faithfulness": ("Text Faithfulness",),
    "image_faithfulness": ("Image Faithfulness",),
    "physical_quality": ("Physical and Visual Quality", "Physical Quality"),
    "text_rendering": ("Text Rendering",),
}
"""Headings of each aspect. The first one is in the prompts. The release's modular_rm_eval/parsing.py looks for the
second one of `physical_quality`.
"""
_ASPECT_PATTERN = re.compile(r"[\W_]*\d\. ?(.{1,60}?)[\s:*]*")
_SCORE_PATTERN = re.compile(r"[#*\s]*Score ?([AB])?[*\s]*:[*~\s]*(\d{1,3}(?:\.\d{1,30})?|N/A)?.{0,200}", re.IGNORECASE)


class PlacedText(NamedTuple):
    """A text, and the positions of images in it."""

    text: str
    places: tuple[int, ...]
    """Character index of each image in the text."""


def place_images(parts: Sequence[str]) -> PlacedText:
    """Join the parts of a text, with an image between each part and the next."""
    ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts) - 1)]
    return PlacedText("".join(parts), tuple(ends))


@dataclass(frozen=True, slots=True)
class RationalRewardsPairs(PairRelease):
    """RationalRewards-8B-T2I as a judge of two images, prompted as in its release's reward_model_evaluation."""

    repository: ClassVar[str] = REPOSITORY
    marker_file: ClassVar[str] = "reward_model_evaluation/modular_rm_eval/prompts.py"
    temperature: ClassVar[float] = 0.1
    max_tokens: ClassVar[int] = 20480
    template: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(read_template(checkout, cls.marker_file, "GEN_PROMPT_TEMPLATE", images=2))

    def request(self, prompt: str, sampling: ReplySampling) -> Request:
        parts = [part.replace(PROMPT_MARK, prompt) for part in self.template.split(IMAGE_MARK)]
        text, places = place_images(parts)
        return sampling.make_request(text, stop=())._replace(image_at=places)

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the image with the higher sum of scores; raise ValueError if no aspect has a score."""
        return compare_scores(reply, GENERATION_ASPECTS)


class RationalRewardsEditPairs(RationalRewardsPairs):
    """RationalRewards-8B-Edit as a judge of two edits of an image."""

    __slots__ = ()
    compares_edits: ClassVar[bool] = True

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(read_template(checkout, cls.marker_file, "EDIT_PROMPT_TEMPLATE", images=3))

    def read_reply(self, reply: str) -> PairAnswer:
        """Return the edit with the higher sum of scores; raise ValueError if no aspect has a score."""
        return compare_scores(reply, EDIT_ASPECTS)


def read_template(checkout: Checkout, file: str, name: str, images: int) -> str:
    """Return a template; raise ConfigError unless it contains PROMPT_MARK once and IMAGE_MARK `images` times."""
    template = checkout.parse_python(file).read_plain_string(name)
    if (template.count(PROMPT_MARK), template.count(IMAGE_MARK)) != (1, images):
        raise checkout.make_checkout_error(file, f"has a {name} without one {PROMPT_MARK} and {images} {IMAGE_MARK}")
    return template


def compare_scores(reply: str, aspects: Sequence[str]) -> PairAnswer:
    """Choose the image with the higher sum of scores over the aspects, as scoring.py does.

    The reply's summary becomes the reason. An aspect without scores counts as 2.5 for both images. Raises ValueError if
    an aspect has a score for only one image, or if no aspect has scores.
    """
    body, _, rest = reply.partition(SUMMARY_MARK)
    scores = read_scores(body)
    given = {key: score for key, score in scores.items() if score is not None}
    if not any((aspect, image) in given for aspect in aspects for image in "AB"):
        raise ValueError("expected lines '## Score A: NUMBER' below the aspects, found none")
    if unpaired := [aspect for aspect in aspects if ((aspect, "A") in given) != ((aspect, "B") in given)]:
        raise ValueError(f"expected a score for each image on {unpaired[0]}, found only one")
    first, second = (math.fsum(given.get((name, image), MISSING_SCORE) for name in aspects) for image in "AB")
    choice: Choice = "tie" if first == second else "first" if first > second else "second"
    return PairAnswer(choice, P_FIRST_BY_CHOICE[choice], read_rationale(rest) or None)


def rate_aspects(reply: str, aspects: Sequence[str]) -> Verdict:
    """Return a reply's ratings of one image, omitting aspects that are N/A; the summary becomes the rationale.

    Ratings are clipped to the range 1 to 4, as in the release. Raises ValueError if an aspect has neither a number nor
    N/A, or if no aspect has a number.
    """
    body, _, rest = reply.partition(SUMMARY_MARK)
    scores = read_scores(body)
    if absent := [aspect for aspect in aspects if (aspect, "") not in scores]:
        raise ValueError(f"expected a line '## Score: NUMBER' below each aspect, found none for {absent[0]}")
    given = {aspect: score for aspect in aspects if (score := scores[aspect, ""]) is not None}
    if not given:
        raise ValueError("expected a score for at least one aspect, found N/A for all")
    ratings = (Rating(aspect, min(max(score, MIN_RATING), MAX_RATING)) for aspect, score in given.items())
    return Verdict(tuple(ratings), read_rationale(rest.partition(REFINEMENT_MARK)[0]))


def read_scores(body: str) -> dict[tuple[str, str], float | None]:
    """Return the first score for each aspect and image: "A", "B", or "" if the reply is about a single image.

    A score that is N/A is None. Raise ValueError if a score is neither a number nor N/A.
    """
    names = {heading: aspect for aspect, headings in HEADINGS.items() for heading in headings}
    scores: dict[tuple[str, str], float | None] = {}
    aspect = ""
    for line in body.splitlines():
        heading = _ASPECT_PATTERN.fullmatch(line.strip())
        if heading is not None and heading[1] in names:
            aspect = names[heading[1]]
        elif aspect and (scored := _SCORE_PATTERN.fullmatch(line.strip())):
            if scored[2] is None:
                raise ValueError(f"expected a number or N/A as the score for {aspect}, found {line.strip()[:80]!r}")
            score = None if scored[2].upper() == "N/A" else float(scored[2])
            scores.setdefault((aspect, (scored[1] or "").upper()), score)
    return scores


@dataclass(frozen=True, slots=True)
class RationalRewardsRating(Release):
    """Base class for RationalRewards' judges that rate a single image or edit."""

    repository: ClassVar[str] = REPOSITORY
    fixed_options: ClassVar[tuple[str, ...]] = ("replies", "max_tokens", "temperature")
    temperature: ClassVar[float] = 0.1
    aspects: ClassVar[tuple[str, ...]]
    system: str
    template: TemplateText
    """Question with a slot for the prompt, and IMAGE_MARK for each image."""

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask for a critique with ratings of all aspects, and return them."""
        text, places = place_images(_split_at_images(self.template, prompt))
        request = ReplySampling(RATING_TOKENS, self.temperature, seed).make_request(text, stop=())
        request = request._replace(system=self.system, image_at=places)
        (verdict,) = yield from ask_as_released([request], [partial(rate_aspects, aspects=self.aspects)])
        return verdict


def _split_at_images(template: TemplateText, prompt: str) -> list[str]:
    """Return the parts of a question between its images, with the prompt filled in."""
    pieces = [part.split(IMAGE_MARK) if isinstance(part, str) else [prompt] for part in template]
    parts = [""]
    for first, *others in pieces:
        parts[-1] += first
        parts += others
    return parts


class GenerationRating(RationalRewardsRating):
    """The question about a generated image, from the release's README.md."""

    __slots__ = ()
    marker_file: ClassVar[str] = "README.md"
    aspects: ClassVar[tuple[str, ...]] = GENERATION_ASPECTS

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = find_code(checkout, cls.marker_file, "def build_t2i_messages(")
        template = code.read_text("user_instruction")
        return cls(
            code.read_plain_string("system_prompt"), check_template(checkout, cls.marker_file, template, images=1)
        )


class EditRating(RationalRewardsRating):
    """The question about an edit, from the release's training of an editor; the source image comes first."""

    __slots__ = ()
    marker_file: ClassVar[str] = "diffusion_rl_training/train_qwen_edit_rationalrewards.py"
    aspects: ClassVar[tuple[str, ...]] = EDIT_ASPECTS

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        before, mark, after = code.read_plain_string("TASK_RELATED_TEMPLATE").partition(PROMPT_MARK)
        after = f"{after}\n\n{code.read_plain_string('COMMON_TASK_GUIDELINE')}"
        template = (before, *((Slot("prompt"),) if mark else ()), after)
        return cls(
            code.read_plain_string("SYSTEM_PROMPT"), check_template(checkout, cls.marker_file, template, images=2)
        )


def check_template(checkout: Checkout, file: str, template: TemplateText, images: int) -> TemplateText:
    """Return the template; raise ConfigError unless it has one slot for the prompt and IMAGE_MARK `images` times."""
    slots = [part.expression for part in template if isinstance(part, Slot)]
    marks = sum(part.count(IMAGE_MARK) for part in template if isinstance(part, str))
    if (slots, marks) != (["prompt"], images):
        raise checkout.make_checkout_error(file, f"has a question without one prompt and {images} {IMAGE_MARK}")
    return template


def find_code(checkout: Checkout, page: str, mark: str) -> PythonFile:
    """Return the first Python code block that contains `mark` on a Markdown page; raise ConfigError if none does."""
    blocks = checkout.read_text(page).split("```python\n")[1:]
    code = next((block for block in (each.partition("\n```")[0] for each in blocks) if mark in block), None)
    if code is None:
        raise checkout.make_checkout_error(page, f"has no block of code with {mark}")
    return checkout.parse_code(code, page)
