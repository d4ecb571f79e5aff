"""A function that draws shapes with adjustable skill, which the tests use instead of a pipeline in training."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

COLOUR_NAMES = ("red", "green", "blue", "yellow", "purple", "black", "orange")
Draw = Callable[[list[str], list[int]], list[Image.Image | None]]


def make_pipeline(skill: float, calls: list[int] | None = None) -> Draw:
    """Return a function that draws images in the prompt's first colour or in grey.

    `skill` is the fraction of images in the prompt's colour. The number of prompts in each call is appended to `calls`.
    """

    def draw(prompts: list[str], seeds: list[int]) -> list[Image.Image | None]:
        if calls is not None:
            calls.append(len(prompts))
        return [_draw_image(prompt, seed, skill) for prompt, seed in zip(prompts, seeds, strict=True)]

    return draw


def _draw_image(prompt: str, seed: int, skill: float) -> Image.Image:
    random = np.random.default_rng(seed)
    found = next((word for word in prompt.split() if word in COLOUR_NAMES), "gray")
    image = Image.new("RGB", (64, 64), "white")
    x, y = (int(value) for value in random.integers(0, 30, 2))
    ImageDraw.Draw(image).ellipse([x, y, x + 28, y + 28], fill=found if random.random() < skill else "gray")
    return image
