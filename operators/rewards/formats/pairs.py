"""Pick-a-Pic v2, every column: what diffusion-DPO trainers and PickScore read."""

import hashlib
from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import Format, Sample

SCHEMA = pa.schema(
    [
        ("are_different", pa.bool_()),
        ("best_image_uid", pa.string()),
        ("caption", pa.string()),
        ("created_at", pa.timestamp("ns")),
        ("has_label", pa.bool_()),
        ("image_0_uid", pa.string()),
        ("image_0_url", pa.string()),
        ("image_1_uid", pa.string()),
        ("image_1_url", pa.string()),
        ("jpg_0", pa.binary()),
        ("jpg_1", pa.binary()),
        ("label_0", pa.float64()),
        ("label_1", pa.float64()),
        ("model_0", pa.string()),
        ("model_1", pa.string()),
        ("ranking_id", pa.int64()),
        ("user_id", pa.int64()),
        ("num_example_per_prompt", pa.int64()),
        ("__index_level_0__", pa.int64()),
    ]
)
"""In the order and of the types of the dataset's card (yuvalkirstain/pickapic_v2).

`jpg_*` are the images as their sources have them: all readers open them by content, so that PNG does. A label is 1 or
0, never the 0.5 of a tie, which trainers read as a win. `user_id` stands for the scorer.
"""


def pair_row(sample: Sample, *, swapped: bool) -> dict[str, Any]:
    """The columns of a pair, the better image second where it is `swapped`."""
    first, second = (sample.worst, sample.best) if swapped else (sample.best, sample.worst)
    columns: dict[str, Any] = {
        "are_different": first.digest != second.digest,
        "best_image_uid": sample.best.uid,
        "caption": sample.prompt,
        "created_at": sample.run_ended,
        "has_label": True,
        "ranking_id": _number(f"{sample.best.uid}\0{sample.worst.uid}"),
        "user_id": _number(sample.scorer),
        "num_example_per_prompt": sample.of_prompt,
        "__index_level_0__": sample.number,
    }
    for place, picture in enumerate((first, second)):
        columns[f"image_{place}_uid"] = picture.uid
        columns[f"image_{place}_url"] = picture.uri
        columns[f"jpg_{place}"] = picture.content
        columns[f"label_{place}"] = float(picture is sample.best)
        columns[f"model_{place}"] = picture.generator
    return columns


def _rows(sample: Sample) -> list[dict[str, Any]]:
    """One row; the better image stands first in about half of them, by a hash, so that its place tells nothing."""
    return [pair_row(sample, swapped=bool(_number(f"{sample.best.uid}\0{sample.worst.uid}") & 1))]


def _number(text: str) -> int:
    """A text as 63 bits, which an int64 holds."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:8], "big") >> 1


FORMAT = Format(unit="pair", container="parquet", images="embedded", rows=_rows, schema=SCHEMA)
