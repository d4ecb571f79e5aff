"""A judge that sees an image and two edits of it, by two editors, and says which edit is better."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.metrics.metric import View

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile


@dataclass(frozen=True, kw_only=True)
class PairwiseEditConfig(PairwiseConfig):
    """Options of a pairwise judge of edits, which is asked in a release's words."""

    kind: Literal["pairwise_edit"] = "pairwise_edit"  # type: ignore[assignment]
    story: ClassVar[str] = (
        "shows a model an image and two edits of it, in both orders, and asks which edit is better; the score is the "
        "share of comparisons that an edit wins"
    )
    views: ClassVar[tuple[View, ...]] = ("edit_pair", "swapped_edit_pair")
    templates: ClassVar[tuple[str, ...]] = ()

    def with_model_defaults(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording; raise ConfigError if no checkout is named."""
        if self.wording is None:
            raise ConfigError(
                f"{self.key_of('wording')}: expected the folder of a checkout of a judge of edits "
                f"({', '.join(self.named_releases)}), found none; clone one and name its folder"
            )
        return PairwiseConfig.with_model_defaults(self, profile_of)
