"""Images with words: a plain sign, a Chinese sign drawn in strokes, and a photograph of a tilted sign."""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.operators import tiny

STROKES = {
    "中": [[(2, 3), (8, 3), (8, 6), (2, 6), (2, 3)], [(5, 0.5), (5, 9.5)]],
    "山": [[(5, 1), (5, 8.5)], [(1.5, 4), (1.5, 8.5), (8.5, 8.5), (8.5, 4)]],
}
"""Corners of each stroke, in tenths of a square; drawn because test machines have no Chinese font."""
SQUARE_SIDE = 40


def draw_sign(*lines: str) -> bytes:
    """Return an image file with lines of text, one below the other.

    The image is nearly square, because OCR enlarges the shorter side of a narrow strip.
    """
    image = Image.new("RGB", (360, max(300, 60 + 60 * len(lines))), "white")
    for place, line in enumerate(lines):
        ImageDraw.Draw(image).text((30, 30 + 60 * place), line, fill="navy", font=ImageFont.load_default(34))
    return tiny.encode_image(image)


def draw_chinese_sign(text: str) -> bytes:
    """Return an image file with the characters of the text, which STROKES must contain, next to each other."""
    image = Image.new("RGB", (60 + 46 * len(text), 60 + SQUARE_SIDE), "white")
    for place, character in enumerate(text):
        for stroke in STROKES[character]:
            corners = [(30 + 46 * place + x * SQUARE_SIDE / 10, 30 + y * SQUARE_SIDE / 10) for x, y in stroke]
            ImageDraw.Draw(image).line(corners, fill="navy", width=3, joint="curve")
    return tiny.encode_image(image)


def draw_photograph(text: str) -> bytes:
    """Return a JPEG of a board with the text, tilted by seven degrees, in front of a mottled wall."""
    mottled = np.random.default_rng(0).integers(90, 150, (15, 21, 3), dtype=np.uint8)
    wall = Image.fromarray(mottled).resize((420, 300), Image.Resampling.BICUBIC)
    board = Image.new("RGBA", (340, 110), (250, 240, 220, 255))
    font = ImageFont.load_default(36)
    ImageDraw.Draw(board).text((170, 55), text, fill=(60, 20, 20), font=font, anchor="mm")
    tilted = board.rotate(7, expand=True, resample=Image.Resampling.BICUBIC)
    wall.paste(tilted, (40, 60), tilted)
    file = io.BytesIO()
    wall.save(file, "JPEG", quality=80)
    return file.getvalue()
