"""Base class for chains that generate texts or images, and the settings of a sweep's image model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NonNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Metric, Scored

SIZE_PATTERN = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChain(Metric):
    """Pseudo-metric for chains that only generate texts or images; plans treat them like any metric."""

    ranks: ClassVar[bool] = False

    def list_score_options(self) -> Mapping[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        raise NotImplementedError(f"{self.kind} does not score images")

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PicturesConfig(BoundsChecked):
    """Settings for generating images, including the number of images per prompt."""

    section: ClassVar[str] = "pictures."
    name: str | None = None
    """Name of the generator and its folder; if null, the last part of the checkpoint's name."""
    cfg: NonNegative | None = None
    """Guidance scale: how strongly the prompt guides the image. If null, the checkpoint's pipeline decides."""
    steps: Positive | None = None
    """Number of denoising steps; if null, the pipeline decides."""
    size: str | None = None
    """Width and height in pixels, such as 1024x768; if null, the pipeline decides."""
    sampler: str | None = None
    """Class name of a diffusers scheduler, such as EulerDiscreteScheduler; null uses the checkpoint's own."""
    negative_prompt: str = ""
    """Description of what images should not show."""
    seed: int = 0
    """Seed of the run. Each image's own seed depends only on this seed, the prompt's id and the image's number."""
    seeds: Positive = 1
    """Number of images per prompt; raising it later keeps the existing images."""
    replace: bool = True
    """True to replace a generator's images if its weights or settings have changed; false to stop with an error."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.size is not None and SIZE_PATTERN.fullmatch(self.size) is None:
            raise ConfigError(f"pictures.size: expected WIDTHxHEIGHT in pixels, such as 1024x768, got {self.size!r}")
