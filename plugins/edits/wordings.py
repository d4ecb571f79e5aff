"""The original wordings of questions about edits, read from checkouts of VIEScore, GEdit-Bench and EditScore."""

from typing import ClassVar, Self

from plumbline.operators.metrics.judges.viescore import VieScoreRelease
from plumbline.operators.metrics.wording import Checkout


class VieScoreEditRelease(VieScoreRelease):
    """VIEScore's rules for images that were edited according to an instruction."""

    __slots__ = ()
    rules: ClassVar[tuple[str, str]] = ("_prompts_0shot_two_image_edit_rule", "_prompts_0shot_tie_rule_SC")
    placeholder: ClassVar[str] = "<instruction>"
    rated: ClassVar[tuple[str, ...]] = ("editing_success", "overediting")
    quality_view: ClassVar[int] = 1


class GEditRelease(VieScoreEditRelease):
    """GEdit-Bench's copy of VIEScore's rules (stepfun-ai/Step1X-Edit at 570eba6)."""

    __slots__ = ()
    repository: ClassVar[str] = "stepfun-ai/Step1X-Edit"
    marker_file: ClassVar[str] = "GEdit-Bench/viescore/vie_prompts.py"


MAX_RATING = 25
"""Highest rating; it replaces the 10 in VIEScore's rules."""
MAX_REQUEST_TRIES = 3
"""Maximum number of requests for a reply that can be parsed, after which EditScore.evaluate guesses a rating."""


class EditScoreRelease(VieScoreEditRelease):
    """VIEScore's rules, with ratings of up to 25 (VectorSpaceLab/EditScore at 6e0f1b9, editscore/vie_prompts.py)."""

    __slots__ = ()
    repository: ClassVar[str] = "VectorSpaceLab/EditScore"
    marker_file: ClassVar[str] = "editscore/vie_prompts.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("replies",)
    context: ClassVar[str] = "_context_no_delimit_reasoning_first"
    tries: ClassVar[int] = MAX_REQUEST_TRIES

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        shown, follows = map(code.read_plain_string, cls.rules)
        context, quality = code.read_plain_string(cls.context), code.read_plain_string("_prompts_0shot_rule_PQ")
        follows, quality = (rule.replace("10", str(MAX_RATING)) for rule in (follows, quality))
        return cls(f"{context}\n{shown}\n{follows}", f"{context}\n{quality}")
