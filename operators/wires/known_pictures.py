"""Pictures that each fit one prompt and no other, by which a reward service is tried."""

import io
from collections.abc import Mapping
from functools import cache

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

SIDE = 384
"""Pixels, either way."""
RADIUS = 54
"""Pixels of the shape in the middle."""
OVERSAMPLING = 4
PAPER = (245, 245, 245)
SHAPES: Mapping[str, tuple[str, int]] = {
    "a red circle": ("#d62728", 60),
    "a blue square": ("#1f5adc", 4),
    "a green triangle": ("#2ca02c", 3),
}
"""By prompt, the colour and the corners of what its picture shows."""
PROMPTS = tuple(SHAPES)


def questions_about(prompt: str) -> list[list[str]]:
    """The question whose answer is Yes of the picture of one of PROMPTS, as GenEval2's file has questions."""
    return [[f"Is there {prompt}?", "Yes"]]


def picture_of(prompt: str, copy: str = "") -> bytes:
    """The picture of one of PROMPTS as a PNG; copies have the same pixels and other bytes, which no cache knows."""
    note, file = PngInfo(), io.BytesIO()
    note.add_text("copy", copy)
    _drawn(prompt).save(file, "PNG", pnginfo=note)
    return file.getvalue()


@cache
def _drawn(prompt: str) -> Image.Image:
    colour, corners = SHAPES[prompt]
    side, radius = SIDE * OVERSAMPLING, RADIUS * OVERSAMPLING
    canvas = Image.new("RGB", (side, side), PAPER)
    ImageDraw.Draw(canvas).regular_polygon((side // 2, side // 2, radius), corners, fill=colour)
    return canvas.resize((SIDE, SIDE), Image.Resampling.BOX)
