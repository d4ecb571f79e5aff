"""The call `draw` of image generators: its requests, settings and results."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from plumbline.operators.base.errors import RowError


class DrawingSettings(NamedTuple):
    """Settings of an image generator; null leaves a setting to the model."""

    cfg: float | None = None
    """Strength of the prompt's guidance."""
    steps: int | None = None
    size: tuple[int, int] | None = None
    """Width and height in pixels."""
    sampler: str | None = None
    """Class name of the scheduler."""
    negative_prompt: str = ""


class DrawingRequest(NamedTuple):
    """One image to be generated."""

    prompt: str
    seed: int
    """Seed of all noise. The image depends on it alone, not on the other images of its batch."""


class Drawn(NamedTuple):
    """A generated image as an encoded file, with its settings; None for settings that the model does not report."""

    encoded: bytes
    cfg: float | None = None
    steps: int | None = None
    seed: int | None = None
    sampler: str | None = None


class DrawingModel(Protocol):
    """`draw(prompts) -> images`: image generators."""

    checkpoint: str
    """The checkpoint's name, as configured."""
    revision: str | None
    """Its hub commit, the digest of its files, or the label of a service."""

    def draw(self, requests: Sequence[DrawingRequest], settings: DrawingSettings) -> list[Drawn | RowError]:
        """Return the image of each request, or an error."""
