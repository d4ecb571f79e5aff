"""Pictures that each fit one prompt and no other, and edits of one into another, by which a reward service is tried."""

import io
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from plumbline.plugins.reward_server.wires.wire import Need, ScoreRequest

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
SIGNS: Mapping[str, str] = {f'a sign that says "{word}"': word for word in ("OPEN", "MARKET", "LIBRARY")}
"""By prompt, the word that its picture shows."""
LETTERS = 56
"""Height of a sign's letters, in pixels."""


def known_prompts(needs: Collection[Need]) -> tuple[str, ...]:
    """The prompts of pictures for rewards with these needs."""
    return tuple(SIGNS if "words" in needs else SHAPES)


def known_request(
    prompt: str, shown: Sequence[str], metrics: Sequence[str], needs: Collection[Need], copy: str = ""
) -> ScoreRequest:
    """The pictures of some of `known_prompts` for one of them, with all that rewards need.

    Where that is a source, the prompt is an instruction, and the source shows the prompt before it.
    """
    prompts = known_prompts(needs)
    edited = "sources" in needs
    return ScoreRequest(
        tuple(picture_of(one, copy) for one in shown),
        f"Change the picture to {prompt}." if edited else prompt,
        tuple(metrics),
        questions=questions_about(prompt) if "questions" in needs else None,
        sources=(picture_of(prompts[prompts.index(prompt) - 1], copy),) if edited else (),
    )


def questions_about(prompt: str) -> list[list[str]]:
    """The question whose answer is Yes of the picture of a prompt, as GenEval2's file has questions."""
    return [[f"Is there {prompt}?", "Yes"]]


def picture_of(prompt: str, copy: str = "") -> bytes:
    """The picture of a prompt as a PNG; copies have the same pixels and other bytes, which no cache knows."""
    note, file = PngInfo(), io.BytesIO()
    note.add_text("copy", copy)
    _drawn(prompt).save(file, "PNG", pnginfo=note)
    return file.getvalue()


@cache
def _drawn(prompt: str) -> Image.Image:
    return _sign(SIGNS[prompt]) if prompt in SIGNS else _shape(*SHAPES[prompt])


def _shape(colour: str, corners: int) -> Image.Image:
    side, radius = SIDE * OVERSAMPLING, RADIUS * OVERSAMPLING
    canvas = Image.new("RGB", (side, side), PAPER)
    ImageDraw.Draw(canvas).regular_polygon((side // 2, side // 2, radius), corners, fill=colour)
    return canvas.resize((SIDE, SIDE), Image.Resampling.BOX)


def _sign(word: str) -> Image.Image:
    canvas = Image.new("RGB", (SIDE, SIDE), PAPER)
    font = ImageFont.load_default(LETTERS)
    ImageDraw.Draw(canvas).text((SIDE / 2, SIDE / 2), word, fill="black", font=font, anchor="mm")
    return canvas
