"""The `draw` call of image generators: its requests, settings and results."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from plumbline.operators.base.errors import RowError


class DrawingSettings(NamedTuple):
    """Settings of an image generator; None means the model's default."""

    cfg: float | None = None
    """Strength of guidance by the prompt."""
    steps: int | None = None
    size: tuple[int, int] | None = None
    """Width and height in pixels."""
    sampler: str | None = None
    """Class name of the scheduler."""
    negative_prompt: str = ""


class DrawingRequest(NamedTuple):
    """A request for one image."""

    prompt: str
    seed: int
    """Seed of all noise, so that the image does not depend on the other images in its batch."""


class DrawnImage(NamedTuple):
    """A generated image as an encoded file, with its settings. Settings that the model does not report are None."""

    encoded: bytes
    cfg: float | None = None
    steps: int | None = None
    seed: int | None = None
    sampler: str | None = None


class DrawingModel(Protocol):
    """Interface of image generators: `draw(prompts) -> images`."""

    checkpoint: str
    """The checkpoint's name, as configured."""
    revision: str | None
    """The checkpoint's hub commit, the digest of its files, or the label of a service."""

    def draw(self, requests: Sequence[DrawingRequest], settings: DrawingSettings) -> list[DrawnImage | RowError]:
        """Return an image or an error for each request."""
