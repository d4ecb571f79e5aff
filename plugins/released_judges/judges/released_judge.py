"""Base class of metrics whose judge was trained with the prompts of its release, and is prompted only with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import InspectionMetricConfig
from plumbline.operators.metrics.metric import Verdict
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile


@runtime_checkable
class RatingRelease(Protocol):
    """Protocol for releases whose prompt asks a judge for ratings of one image or edit."""

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask about one image or edit made for this prompt, and return the ratings."""


@dataclass(frozen=True, kw_only=True)
class ReleasedJudgeConfig(InspectionMetricConfig):
    """Base class of metrics that need a checkout of their judge's release (`wording`)."""

    @property
    def json_role(self) -> str | None:
        return None

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording filled in; raise ConfigError without a checkout."""
        if self.wording is None:
            (release,) = self.releases
            raise ConfigError(
                f"{self.format_key('wording')}: expected the folder with a checkout of https://github.com/"
                f"{release.repository}, because the judge was trained on its wording, found none; clone it and name "
                "its folder"
            )
        return InspectionMetricConfig.complete_options(self, profile_of)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Prompt the judge with its release's wording, and return its verdict."""
        release = self._wording.release
        assert isinstance(release, RatingRelease), "the plan refuses the metric without its release"
        return (yield from release.inspect(prompt, self.seed))

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that determine a verdict, except the judge, keyed by name."""
        return {"wording": self.wording_digest, "seed": self.seed}
