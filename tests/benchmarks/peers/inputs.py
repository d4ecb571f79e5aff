"""The images and prompts that all contenders read: a folder with PNG files and a metadata.jsonl for each case."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tests.benchmarks.peers.checkpoints import ASSETS
from tests.benchmarks.photographs import make_photograph

TABLE = "metadata.jsonl"
"""Rows with image_id, file_name and prompt."""
N_PHOTOGRAPHS = 8
LONG_IMAGES = 8
"""Number of images in the case of a long prompt; the prompt of one of them is long."""
LONG_WORDS = 200
DIVISORS = {"p_yes": 10}
"""Divisors of the numbers of images, for measures by slow models."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the cases."""

    images: int = 700
    corrupt: int = 1000
    """Number of images in the case with a corrupt image."""
    many: int = 10
    """Number of images in the case with many images, as a multiple of `images`."""
    asked: int = 300
    """Number of images with several texts each."""
    texts: int = 10
    """Number of texts for each of these images."""
    side: int = 256
    """Width and height of an image in pixels."""

    def for_measure(self, measure: str) -> "Sizes":
        """Return the sizes for a measure; models on vLLM's CPU build get a part of the images."""
        divisor = DIVISORS.get(measure, 1)
        fewer = {name: math.ceil(getattr(self, name) / divisor) for name in ("images", "corrupt", "asked")}
        return replace(self, **fewer)


class Case:
    """Names of the cases, which are also the names of their folders."""

    BASE = "base"
    MANY = "many"
    CORRUPT = "corrupt"
    LONG = "long"
    ASKED = "asked"
    """Several texts for each image."""


def write_inputs(folder: Path, sizes: Sizes) -> None:
    """Write the folders of all cases; each image is a shifted copy of one of some photographs."""
    texts: list[str] = pq.read_table(ASSETS / "shapes" / "prompts.parquet")["text"].to_pylist()
    base, draws = folder / Case.BASE, np.random.default_rng(0)
    photographs = [np.asarray(make_photograph(seed, sizes.side)) for seed in range(N_PHOTOGRAPHS)]
    base.mkdir(parents=True)
    for number in range(sizes.images):
        shift = draws.integers(sizes.side, size=2)
        picture = np.roll(photographs[draws.integers(N_PHOTOGRAPHS)], (int(shift[0]), int(shift[1])), (0, 1))
        Image.fromarray(picture).save(base / f"{number:06d}.png")
    pairs = [(number, texts[number % len(texts)]) for number in range(sizes.images)]
    _write_table(base, pairs)
    corrupt = _link(base, folder / Case.CORRUPT, sizes.corrupt)
    broken = corrupt / f"{find_corrupt(sizes):06d}.png"
    whole = broken.read_bytes()
    broken.unlink()  # it is a link to an image of the base case
    broken.write_bytes(whole[: len(whole) // 2])
    _write_table(corrupt, [(number, texts[number % len(texts)]) for number in range(sizes.corrupt)])
    words = (LONG_WORDS * ["a", "red", "circle", "and"])[:LONG_WORDS]
    long = _link(base, folder / Case.LONG, LONG_IMAGES)
    _write_table(long, [(0, " ".join(words)), *((number, texts[number]) for number in range(1, LONG_IMAGES))])
    many = _link(base, folder / Case.MANY, sizes.images * sizes.many)
    _write_table(many, enumerate([text for _, text in pairs] * sizes.many))
    asked = _link(base, folder / Case.ASKED, sizes.asked)
    numbers = [(image, (image + 7 * k) % len(texts)) for image in range(sizes.asked) for k in range(sizes.texts)]
    _write_table(asked, [(image, texts[number]) for image, number in numbers])


def name_row(number: int) -> str:
    """Return an image id that no reader of JSON mistakes for a number, as `ray.data.read_json` does for "000001"."""
    return f"row-{number:06d}"


def find_corrupt(sizes: Sizes) -> int:
    """Return the number of the image that is cut off in the case with a corrupt image."""
    return sizes.corrupt // 2


def _link(source: Path, target: Path, count: int) -> Path:
    """Link the images of a folder into another folder, as often as it takes for `count` images."""
    target.mkdir()
    files = sorted(source.glob("*.png"))
    for number in range(count):
        os.link(files[number % len(files)], target / f"{number:06d}.png")
    return target


def _write_table(folder: Path, pairs: Iterable[tuple[int, str]]) -> None:
    rows = (
        {"image_id": name_row(row), "file_name": f"{image:06d}.png", "prompt": text}
        for row, (image, text) in enumerate(pairs)
    )
    (folder / TABLE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
