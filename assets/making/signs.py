"""The shapes_text benchmark: signs by four simulated generators, each with a known number of misspelt words."""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw, ImageFont

from plumbline.assets.making.prompts import make_content_id
from plumbline.assets.making.scenes import to_png
from plumbline.operators.base.rows import table
from plumbline.operators.base.schemas import PROMPTS

SIGNS_SUITE = "shapes_text"
IMAGE_SIDE = 256
"""Width and height of a sign in pixels."""
SIGN_TEXTS = (
    "GRAND OPENING",
    "FRESH COFFEE",
    "GARDEN MARKET",
    "WINTER SALE",
    "CITY LIBRARY",
    "NIGHT TRAIN",
    "BAKERY HOUSE",
    "RIVER BRIDGE",
)
MISSPELT_WORDS: Mapping[str, int] = {"quill": 0, "stencil": 3, "marker": 7, "smudge": 13}
"""Number of misspelt words out of 16, by generator. A misspelt word has a wrong letter in the middle."""
ID_FIELDS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
IMAGES_SCHEMA = pa.schema([*ID_FIELDS, ("image", pa.binary())])
TRUTH_SCHEMA = pa.schema([*ID_FIELDS, ("text", pa.string()), ("wrong", pa.int32())])
"""Ground truth: `text` is the text on the sign, and `wrong` is the number of misspelt words in it."""


class Sign(NamedTuple):
    """A generator's sign for one prompt."""

    wanted: str
    text: str

    @property
    def n_misspelt(self) -> int:
        """Number of misspelt words."""
        return sum(word != other for word, other in zip(self.wanted.split(), self.text.split(), strict=True))


def make_signs(generator: str, seed: int) -> list[Sign]:
    """Make the generator's sign for each text, with randomly chosen misspelt words."""
    words = [word for text in SIGN_TEXTS for word in text.split()]
    rng = Random(f"signs/{seed}/{generator}")
    for place in rng.sample(range(len(words)), MISSPELT_WORDS[generator]):
        words[place] = misspell(words[place], rng)
    pairs = [" ".join(words[place : place + 2]) for place in range(0, len(words), 2)]
    return [Sign(wanted, text) for wanted, text in zip(SIGN_TEXTS, pairs, strict=True)]


def misspell(word: str, rng: Random) -> str:
    """Return the word with a letter in the middle replaced by a letter that is clearly different."""
    place = len(word) // 2
    return word[:place] + rng.choice([letter for letter in "KXZ" if letter != word[place]]) + word[place + 1 :]


def draw_sign(text: str) -> bytes:
    """Draw a PNG of the text, one line per word."""
    image = Image.new("RGB", (IMAGE_SIDE, IMAGE_SIDE), (244, 240, 228))
    draw = ImageDraw.Draw(image)
    for line, word in enumerate(text.split()):
        draw.text(
            (IMAGE_SIDE / 2, 92 + 72 * line), word, fill=(32, 40, 72), font=ImageFont.load_default(40), anchor="mm"
        )
    return to_png(np.asarray(image))


def make_sign_tables(seed: int) -> dict[str, pa.Table]:
    """Return all tables of the benchmark, by path in the benchmark's folder."""
    prompts = [{"text": f'a sign that says "{text}"', "skills": ["text"], "suite": SIGNS_SUITE} for text in SIGN_TEXTS]
    prompts = [prompt | {"prompt_id": make_content_id(str(prompt["text"]).encode())} for prompt in prompts]
    tables, truth = {"prompts.parquet": table(prompts, PROMPTS)}, []
    for generator in MISSPELT_WORDS:
        images = []
        for prompt, sign in zip(prompts, make_signs(generator, seed), strict=True):
            png = draw_sign(sign.text)
            image_id = make_content_id(generator.encode(), str(prompt["prompt_id"]).encode(), png)
            ids = {"image_id": image_id, "prompt_id": prompt["prompt_id"], "generator": generator}
            images.append(ids | {"image": png})
            truth.append(ids | {"text": sign.text, "wrong": sign.n_misspelt})
        tables[f"images/{generator}/00000.parquet"] = table(images, IMAGES_SCHEMA)
    return tables | {"truth.parquet": table(truth, TRUTH_SCHEMA)}
