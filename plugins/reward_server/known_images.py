"""Draws test images that each match exactly one prompt, and makes requests from them to check reward servers."""

import io
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from plumbline.plugins.reward_server.wires.wire import Need, ScoreRequest

IMAGE_SIDE = 384
"""Width and height of the images in pixels."""
SHAPE_RADIUS = 54
"""Radius of the shape in pixels."""
OVERSAMPLING_FACTOR = 4
BACKGROUND_COLOUR = (245, 245, 245)
SHAPE_BY_PROMPT: Mapping[str, tuple[str, int]] = {
    "a red circle": ("#d62728", 60),
    "a blue square": ("#1f5adc", 4),
    "a green triangle": ("#2ca02c", 3),
}
"""Colour and number of corners of each prompt's shape."""
SIGN_TEXT_BY_PROMPT: Mapping[str, str] = {f'a sign that says "{word}"': word for word in ("OPEN", "MARKET", "LIBRARY")}
"""Word on each prompt's sign."""
FONT_SIZE = 56


def select_prompts(needs: Collection[Need]) -> tuple[str, ...]:
    """Return the test prompts for rewards with these needs: prompts with quoted words, or prompts about shapes."""
    return tuple(SIGN_TEXT_BY_PROMPT if "words" in needs else SHAPE_BY_PROMPT)


def make_request(
    prompt: str, image_prompts: Sequence[str], metrics: Sequence[str], needs: Collection[Need], copy: str = ""
) -> ScoreRequest:
    """Return a request that pairs `prompt` with the images drawn for `image_prompts`, and adds all needed inputs.

    If a source is needed, the prompt is an editing instruction, and the source is the image for the previous prompt.
    """
    prompts = select_prompts(needs)
    edited = "sources" in needs
    return ScoreRequest(
        tuple(draw_image(name, copy) for name in image_prompts),
        f"Change the picture to {prompt}." if edited else prompt,
        tuple(metrics),
        questions=make_questions(prompt) if "questions" in needs else None,
        sources=(draw_image(prompts[prompts.index(prompt) - 1], copy),) if edited else (),
    )


def make_questions(prompt: str) -> list[list[str]]:
    """Return a list of one question in GenEval2's format; the answer is Yes for the image that matches the prompt."""
    return [[f"Is there {prompt}?", "Yes"]]


def draw_image(prompt: str, copy: str = "") -> bytes:
    """Draw the image for a prompt as a PNG.

    Images that differ only in `copy` have the same pixels but different bytes, so a cache tells them apart.
    """
    note, file = PngInfo(), io.BytesIO()
    note.add_text("copy", copy)
    _draw_matching_image(prompt).save(file, "PNG", pnginfo=note)
    return file.getvalue()


@cache
def _draw_matching_image(prompt: str) -> Image.Image:
    if prompt in SIGN_TEXT_BY_PROMPT:
        canvas = Image.new("RGB", (IMAGE_SIDE, IMAGE_SIDE), BACKGROUND_COLOUR)
        font = ImageFont.load_default(FONT_SIZE)
        ImageDraw.Draw(canvas).text(
            (IMAGE_SIDE / 2, IMAGE_SIDE / 2), SIGN_TEXT_BY_PROMPT[prompt], fill="black", font=font, anchor="mm"
        )
        return canvas
    colour, corners = SHAPE_BY_PROMPT[prompt]
    side, radius = IMAGE_SIDE * OVERSAMPLING_FACTOR, SHAPE_RADIUS * OVERSAMPLING_FACTOR
    canvas = Image.new("RGB", (side, side), BACKGROUND_COLOUR)
    ImageDraw.Draw(canvas).regular_polygon((side // 2, side // 2, radius), corners, fill=colour)
    return canvas.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BOX)
