"""EditScore's release (VectorSpaceLab/EditScore at 6e0f1b9): VIEScore's rules for edits, with ratings up to 25."""

from typing import ClassVar, Self

from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.viescore import VieScoreEditRelease

HIGHEST, TRIES = 25, 3
"""score_range, which takes the place of 10 in the rules, and EditScore.evaluate, which guesses after so many tries."""


class EditScoreRelease(VieScoreEditRelease):
    """Its rules (editscore/vie_prompts.py)."""

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
        follows, quality = (rule.replace("10", str(HIGHEST)) for rule in (follows, quality))
        return cls(f"{context}\n{shown}\n{follows}", f"{context}\n{quality}")
