"""The chain that generates images (configured like a metric), and the id and seed of each image."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.metrics.generation import SIZE_PATTERN, GenerationChain, PicturesConfig
from plumbline.plugins.generation.drawing import DrawingRequest, DrawingSettings


class PictureName(NamedTuple):
    """Components of an image id: the prompt, and the number of the image among the prompt's images."""

    prompt_id: str
    number: int

    @property
    def image_id(self) -> str:
        """Id of the image, unique among the generator's images."""
        return f"{self.prompt_id}-{self.number}"


def parse_image_id(image_id: str) -> PictureName:
    """Parse the prompt and number from an image_id."""
    prompt_id, _, number = image_id.rpartition("-")
    return PictureName(prompt_id, int(number))


@runtime_checkable
class DrawingMetric(Protocol):
    """A chain that generates images."""

    def image_options(self) -> dict[str, Any]:
        """Return all options that affect an image, except its generator and prompt."""

    def make_settings(self) -> DrawingSettings:
        """Return the settings for the generator."""

    def make_request(self, image_id: str, prompt: str) -> DrawingRequest:
        """Return the request that generates one image for a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures(GenerationChain):
    """A chain that generates images as rows of the schema PICTURES_SCHEMA."""

    kind: Literal["pictures"] = "pictures"
    chain: ClassVar[tuple[str, ...]] = ("pictures",)
    final_stage: ClassVar[str] = "pictures"
    role_keys: ClassVar[tuple[str, ...]] = ("generator",)
    generator: str = "image_model"
    """Role of the model that generates the images."""
    options: PicturesConfig

    def image_options(self) -> dict[str, Any]:
        return {**self.make_settings()._asdict(), "seed": self.options.seed}

    def make_settings(self) -> DrawingSettings:
        options, found = self.options, SIZE_PATTERN.fullmatch(self.options.size or "")
        size = (int(found[1]), int(found[2])) if found else None
        return DrawingSettings(options.cfg, options.steps, size, options.sampler, options.negative_prompt)

    def make_request(self, image_id: str, prompt: str) -> DrawingRequest:
        """Return a request to generate an image for a prompt. The seed has 32 bits, so all generators accept it."""
        content = f"{self.options.seed}\0{image_id}".encode()
        return DrawingRequest(prompt, int.from_bytes(hashlib.sha256(content).digest()[:4]))
