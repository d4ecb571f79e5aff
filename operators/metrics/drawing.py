"""What is to be drawn, and how: the settings of a generation, its pictures with their seeds, and its one stage."""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base.bounds import Checked, NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.making import Making
from plumbline.operators.models.calls import DrawingRequest, DrawingSettings

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class PicturesConfig(Checked):
    """How pictures are made, and how many of each prompt."""

    section: ClassVar[str] = "pictures."
    name: str | None = None
    """What the generator is called, and its folder; null is the last part of its checkpoint."""
    cfg: NotNegative | None = None
    """How strongly the prompt guides (guidance scale); null leaves it to the checkpoint's pipeline."""
    steps: Positive | None = None
    """Denoising steps; null leaves them to the pipeline."""
    size: str | None = None
    """Width and height in pixels, as in 1024x768; null leaves it to the pipeline."""
    sampler: str | None = None
    """The scheduler's class in diffusers, such as EulerDiscreteScheduler; null takes the checkpoint's own."""
    negative_prompt: str = ""
    """What no picture is to show."""
    seed: int = 0
    """The seed of each picture follows from it, the prompt's id and the picture's number, and from nothing else."""
    seeds: Positive = 1
    """Pictures of each prompt; more of them later leave the first ones as they are."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.size is not None and SIZE.fullmatch(self.size) is None:
            raise ConfigError(f"pictures.size: expected WIDTHxHEIGHT in pixels, such as 1024x768, got {self.size!r}")

    @property
    def drawing(self) -> DrawingSettings:
        """As models are told."""
        found = SIZE.fullmatch(self.size or "")
        size = (int(found[1]), int(found[2])) if found else None
        return DrawingSettings(self.cfg, self.steps, size, self.sampler, self.negative_prompt)


class PictureName(NamedTuple):
    """Which picture of which prompt."""

    prompt_id: str
    number: int

    @property
    def image_id(self) -> str:
        """No other picture of the generator has it."""
        return f"{self.prompt_id}-{self.number}"


def picture_name(image_id: str) -> PictureName:
    """The name that an image_id was made of."""
    prompt_id, _, number = image_id.rpartition("-")
    return PictureName(prompt_id, int(number))


@runtime_checkable
class DrawingMetric(Protocol):
    """A chain in which pictures are drawn."""

    def drawing(self) -> dict[str, Any]:
        """All that decides a picture, but for its generator and its prompt."""

    def settings(self) -> DrawingSettings:
        """How the generator is to draw."""

    def request(self, image_id: str, prompt: str) -> DrawingRequest:
        """One picture of a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures(Making):
    """A chain that ends where a generator has drawn: its rows are those of the table PICTURES."""

    kind: Literal["pictures"] = "pictures"
    chain: ClassVar[tuple[str, ...]] = ("pictures",)
    ends: ClassVar[str] = "pictures"
    role_keys: ClassVar[tuple[str, ...]] = ("generator",)
    generator: str = "image_model"
    """The role of its model."""
    options: PicturesConfig

    def drawing(self) -> dict[str, Any]:
        """All that decides a picture, but for its generator and its prompt."""
        return {**self.options.drawing._asdict(), "seed": self.options.seed}

    def settings(self) -> DrawingSettings:
        """How the generator is to draw."""
        return self.options.drawing

    def request(self, image_id: str, prompt: str) -> DrawingRequest:
        """One picture of a prompt; its seed has 32 bits, which every generator takes."""
        content = f"{self.options.seed}\0{image_id}".encode()
        return DrawingRequest(prompt, int.from_bytes(hashlib.sha256(content).digest()[:4]))
