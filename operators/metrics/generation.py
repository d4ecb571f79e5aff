"""Generation of images: its settings, the seed of each image, and the metric-like chain with its single stage."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Metric
from plumbline.operators.models.calls import DrawingRequest, DrawingSettings

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChain(Metric):
    """Pseudo-metric for chains that only generate texts or images; a plan makes cells of its chain as of any
    metric's."""

    ranks: ClassVar[bool] = False

    def scoring(self) -> Mapping[str, Any]:
        """Return nothing: no image is scored."""
        return {}

    def score(self, evidence: Evidence) -> Scored:
        """Raise NotImplementedError: the chain has no scores."""
        raise NotImplementedError(f"{self.kind} scores no image")

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return one call."""
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

    @property
    def drawing(self) -> DrawingSettings:
        """The settings as models get them."""
        found = SIZE.fullmatch(self.size or "")
        size = (int(found[1]), int(found[2])) if found else None
        return DrawingSettings(self.cfg, self.steps, size, self.sampler, self.negative_prompt)


class PictureName(NamedTuple):
    """A prompt and the number of one of its images."""

    prompt_id: str
    number: int

    @property
    def image_id(self) -> str:
        """Id that is unique among the generator's images."""
        return f"{self.prompt_id}-{self.number}"


def picture_name(image_id: str) -> PictureName:
    """Return the prompt and number in an image_id."""
    prompt_id, _, number = image_id.rpartition("-")
    return PictureName(prompt_id, int(number))


@runtime_checkable
class DrawingMetric(Protocol):
    """A chain that generates images."""

    def drawing(self) -> dict[str, Any]:
        """Return all options that decide an image, except its generator and its prompt."""

    def settings(self) -> DrawingSettings:
        """Return the settings for the generator."""

    def request(self, image_id: str, prompt: str) -> DrawingRequest:
        """Return the request for one image of a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures(GenerationChain):
    """A chain that ends in generated images: rows of the table PICTURES."""

    kind: Literal["pictures"] = "pictures"
    chain: ClassVar[tuple[str, ...]] = ("pictures",)
    final_stage: ClassVar[str] = "pictures"
    role_keys: ClassVar[tuple[str, ...]] = ("generator",)
    generator: str = "image_model"
    """Role of its model."""
    options: PicturesConfig

    def drawing(self) -> dict[str, Any]:
        return {**self.options.drawing._asdict(), "seed": self.options.seed}

    def settings(self) -> DrawingSettings:
        return self.options.drawing

    def request(self, image_id: str, prompt: str) -> DrawingRequest:
        """Return the request for one image of a prompt; its seed has 32 bits, which every generator accepts."""
        content = f"{self.options.seed}\0{image_id}".encode()
        return DrawingRequest(prompt, int.from_bytes(hashlib.sha256(content).digest()[:4]))
