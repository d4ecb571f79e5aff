"""Base class of metrics whose judge was trained for its release's words, and is asked in no others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import InspectedConfig
from plumbline.operators.metrics.metric import Verdict
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile


@runtime_checkable
class RatingRelease(Protocol):
    """Protocol of releases whose prompt asks a judge for ratings of one image or edit."""

    def inspect(self, prompt: str, seed: int) -> Writing[Verdict]:
        """Ask about an image of this prompt, and return the ratings."""


@dataclass(frozen=True, kw_only=True)
class ReleasedJudgeConfig(InspectedConfig):
    """Base class of metrics that need a checkout of their judge's release (`wording`)."""

    @property
    def json_role(self) -> str | None:
        return None

    def with_model_defaults(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording; raise ConfigError if no checkout is named."""
        if self.wording is None:
            (release,) = self.releases
            raise ConfigError(
                f"{self.key_of('wording')}: expected the folder of a checkout of https://github.com/"
                f"{release.repository}, because the judge was trained for its words, found none; clone it and name it"
            )
        return InspectedConfig.with_model_defaults(self, profile_of)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask the judge in its release's words, and return its verdict."""
        release = self._wording.release
        assert isinstance(release, RatingRelease), "the plan refuses the metric without its release"
        return (yield from release.inspect(prompt, self.seed))

    def verdict_options(self) -> dict[str, Any]:
        """Return, by name, all options that determine a verdict, except the judge."""
        return {"wording": self.wording_digest, "seed": self.seed}
