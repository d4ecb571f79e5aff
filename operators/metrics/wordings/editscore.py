"""EditScore's release (VectorSpaceLab/EditScore at 6e0f1b9): VIEScore's rules for edits, with ratings up to 25."""

from typing import ClassVar, Self

from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.viescore import VieScoreEditRelease

MAX_RATING, TRIES = 25, 3
"""score_range, which replaces 10 in the rules, and the number of tries after which EditScore.evaluate guesses."""


class EditScoreRelease(VieScoreEditRelease):
    """The rules in editscore/vie_prompts.py."""

    __slots__ = ()
    repository: ClassVar[str] = "VectorSpaceLab/EditScore"
    mark: ClassVar[str] = "editscore/vie_prompts.py"
    decides: ClassVar[tuple[str, ...]] = ("replies",)
    context: ClassVar[str] = "_context_no_delimit_reasoning_first"
    tries: ClassVar[int] = TRIES

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        shown, follows = map(code.plain, cls.rules)
        context, quality = code.plain(cls.context), code.plain("_prompts_0shot_rule_PQ")
        follows, quality = (rule.replace("10", str(MAX_RATING)) for rule in (follows, quality))
        return cls(f"{context}\n{shown}\n{follows}", f"{context}\n{quality}")
