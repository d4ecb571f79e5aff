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
    """Options of a pairwise judge of edits, which is prompted with a release's wording."""

    kind: Literal["pairwise_edit"] = "pairwise_edit"  # type: ignore[assignment]
    story: ClassVar[str] = (
        "shows a model an image and two edits of it, in both orders, and asks which edit is better; the score is the "
        "share of comparisons that an edit wins"
    )
    views: ClassVar[tuple[View, ...]] = ("edit_pair", "swapped_edit_pair")
    templates: ClassVar[tuple[str, ...]] = ()

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with its unset options filled in; raise ConfigError if no checkout is configured."""
        if self.wording is None:
            raise ConfigError(
                f"{self.format_key('wording')}: expected the folder with a checkout of an edit judge "
                f"({', '.join(self.named_releases)}), found none; clone one and name its folder"
            )
        return PairwiseConfig.complete_options(self, profile_of)
