"""What is shown of a row of several images: a video's frames, or the views of a thing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import Any, Literal

from PIL import Image

from plumbline.operators.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Clips:
    """How the images of such a row are looked at (vqascore_genai_bench.txt, sec. 6 and appendix F)."""

    frames: int = 4
    """Of a video, sampled evenly from its first to its last; nearly as good as all of them by the paper."""
    shown: Literal["each", "grid", "video"] = "each"
    """`each` by itself, the row's score being their mean; all as one picture, a `grid` read line by line; or as the one
    `video` that a model reads which takes videos."""

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ConfigError(f"clips.frames: expected at least 1, got {self.frames}")

    def semantic(self) -> dict[str, Any]:
        """What of it can change a result, for the cells' keys, which are older than it."""
        return {name: value for name, value in asdict(self).items() if value != getattr(STANDARD, name)}


STANDARD = Clips()


LISTED_SECONDS = 0.5
"""Between two frames of a list, of which no times are known: two a second, as qwen-vl-utils takes such a list."""


def grid(images: Sequence[Image.Image]) -> Image.Image:
    """Images side by side, line by line, in a square or nearly so: 2x2 of four, 3x3 of nine; what is left is black.

    Every place has the size of the first image, to which the others are resized.
    """
    columns = ceil(sqrt(len(images)))
    width, height = images[0].size
    whole = Image.new("RGB", (columns * width, ceil(len(images) / columns) * height))
    for place, image in enumerate(images):
        shown = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)
        whole.paste(shown, (place % columns * width, place // columns * height))
    return whole
