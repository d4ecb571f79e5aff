"""What a metric is denied to see how much it needs it: the right image, any image, or the order of words.

The ablations of "What makes a good metric?" (sec. 4) that are no other model. A metric that loses nothing by one of
them does not measure what it is denied.
"""

import hashlib
import io
from collections import Counter
from typing import Literal

import pyarrow as pa
from PIL import Image

from plumbline.operators.base.errors import SourceError

Ablation = Literal["shuffled_images", "blank_images", "shuffled_words"]
"""`shuffled_images`: every row is looked at with an image of another prompt, of its own shard and generator;
`blank_images`: with one grey image, whatever the prompt; `shuffled_words`: the words of what is asked, or compared with
the image, are out of order (of a question the question, its choices as they are)."""

IMAGES = ("image", "uri")
"""The columns that hold a row's images."""
GREY, SIDE = (127, 127, 127), 336


def shown_instead(rows: pa.Table, ablation: Ablation | None) -> pa.Table:
    """A shard's rows with the images that a metric is shown.

    Raises SourceError where images are to be of other prompts, and most are of one.
    """
    if ablation == "shuffled_images":
        return _with_others(rows)
    return _with_blank(rows) if ablation == "blank_images" else rows


def _with_others(rows: pa.Table) -> pa.Table:
    """Rows in the order of their prompts' hashes stand in a ring, and each takes the image as far on as the largest
    prompt has rows: so it is another prompt's, and no image is taken twice.
    """
    prompts = [str(prompt) for prompt in rows.column("prompt_id").to_pylist()]
    if not prompts:
        return rows
    most = max(Counter(prompts).values())
    if 2 * most > len(prompts):
        raise SourceError(
            f"shuffled_images: expected a shard half of whose images are of other prompts, found {most} of "
            f"{len(prompts)} of one; raise shard_rows, or leave this ablation out"
        )
    ring = sorted(range(len(prompts)), key=lambda row: (_hash(prompts[row]), row))
    taken = {row: ring[(place + most) % len(ring)] for place, row in enumerate(ring)}
    order = pa.array([taken[row] for row in range(len(prompts))], pa.int64())
    for name in IMAGES:
        if name in rows.column_names:
            place = rows.column_names.index(name)
            rows = rows.set_column(place, rows.field(name), rows.column(name).take(order))
    return rows


def _with_blank(rows: pa.Table) -> pa.Table:
    rows = rows.drop_columns([name for name in IMAGES if name in rows.column_names])
    file = io.BytesIO()
    blank_image().save(file, "PNG")
    return rows.append_column("image", pa.array([file.getvalue()] * len(rows), pa.binary()))


def blank_image() -> Image.Image:
    """All grey, with nothing to see."""
    return Image.new("RGB", (SIDE, SIDE), GREY)


def shuffled_words(text: str) -> str:
    """The words of a text in an order that follows from the text alone, and is not its own where it can be another."""
    words = text.split()
    order = sorted(range(len(words)), key=lambda place: _hash(f"{text}\0{place}"))
    shuffled = [words[place] for place in order]
    return " ".join(shuffled if shuffled != words else [*words[1:], *words[:1]])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
