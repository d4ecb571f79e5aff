"""Ablations: withhold an input from a metric (the right image, any image, or the word order) to see if it matters.

These are the ablations of "What makes a good metric?" (sec. 4) that need no other model. If an ablation does not make a
metric's results worse, the metric does not measure the withheld input.
"""

import hashlib
import io
from collections import Counter
from typing import Literal

import pyarrow as pa
from PIL import Image

from plumbline.operators.base.errors import SourceError

Ablation = Literal["shuffled_images", "blank_images", "shuffled_words"]
"""Kind of ablation.

`shuffled_images`: each row gets the image of another prompt, from its own shard and generator; `blank_images`: each row
gets the same grey image; `shuffled_words`: the words of each question, or of the text that is compared with the image,
are shuffled (the choices of a question are kept).
"""

IMAGE_COLUMNS = ("image", "uri")
"""Columns that contain a row's image."""
GREY, BLANK_SIDE = (127, 127, 127), 336


def replace_images(rows: pa.Table, ablation: Ablation | None) -> pa.Table:
    """Return a shard's rows with their images replaced as the ablation requires; without an ablation, unchanged.

    Raises SourceError if more than half of the images have the same prompt, because then no shuffling can give every
    row the image of another prompt.
    """
    if ablation == "shuffled_images":
        return _shuffle_images(rows)
    if ablation == "blank_images":
        rows = rows.drop_columns([name for name in IMAGE_COLUMNS if name in rows.column_names])
        file = io.BytesIO()
        make_blank_image().save(file, "PNG")
        return rows.append_column("image", pa.array([file.getvalue()] * len(rows), pa.binary()))
    return rows


def _shuffle_images(rows: pa.Table) -> pa.Table:
    """Return the rows, each with the image of another prompt; each image is used once.

    The rows form a ring, sorted by the hashes of their prompts. If the most frequent prompt has N rows, each row gets
    the image of the row N steps ahead. Rows with the same prompt are at most N - 1 steps apart.
    """
    prompts = [str(prompt) for prompt in rows.column("prompt_id").to_pylist()]
    if not prompts:
        return rows
    most = max(Counter(prompts).values())
    if 2 * most > len(prompts):
        raise SourceError(
            f"shuffled_images: expected at most half of a shard's images to have the same prompt, found {most} of "
            f"{len(prompts)}; raise shard_rows, or leave this ablation out"
        )
    ring = sorted(range(len(prompts)), key=lambda row: (_hash_text(prompts[row]), row))
    source = {row: ring[(place + most) % len(ring)] for place, row in enumerate(ring)}
    order = pa.array([source[row] for row in range(len(prompts))], pa.int64())
    for index, name in enumerate(rows.column_names):
        if name in IMAGE_COLUMNS:
            rows = rows.set_column(index, rows.field(name), rows.column(name).take(order))
    return rows


def make_blank_image() -> Image.Image:
    return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE), GREY)


def shuffle_words(text: str) -> str:
    """Return the text with its words in a different order, if possible; the order depends only on the text."""
    words = text.split()
    order = sorted(range(len(words)), key=lambda index: _hash_text(f"{text}\0{index}"))
    shuffled = [words[index] for index in order]
    return " ".join(shuffled if shuffled != words else [*words[1:], *words[:1]])


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
