"""Generation of texts and images: the base of its metric-like chains, and the settings of a sweep's image model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Metric, Scored

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChain(Metric):
    """Pseudo-metric for chains that only generate texts or images; plans treat them like any metric."""

    ranks: ClassVar[bool] = False

    def scoring(self) -> Mapping[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        raise NotImplementedError(f"{self.kind} scores no image")

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PicturesConfig(BoundsChecked):
    """Settings for generating images, and their number per prompt."""

    section: ClassVar[str] = "pictures."
    name: str | None = None
    """Name of the generator and of its folder; null is the last part of its checkpoint."""
    cfg: NotNegative | None = None
    """Guidance scale, how strongly the prompt guides; null leaves it to the checkpoint's pipeline."""
    steps: Positive | None = None
    """Denoising steps; null leaves them to the pipeline."""
    size: str | None = None
    """Width and height in pixels, as in 1024x768; null leaves it to the pipeline."""
    sampler: str | None = None
    """The scheduler's class in diffusers, such as EulerDiscreteScheduler; null uses the checkpoint's own."""
    negative_prompt: str = ""
    """Things that no image should show."""
    seed: int = 0
    """Seed of the run. The seed of each image depends only on it, the prompt's id and the image's number."""
    seeds: Positive = 1
    """Images per prompt; raising it later keeps the first ones as they are."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.size is not None and SIZE.fullmatch(self.size) is None:
            raise ConfigError(f"pictures.size: expected WIDTHxHEIGHT in pixels, such as 1024x768, got {self.size!r}")
