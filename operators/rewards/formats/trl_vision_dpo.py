"""TRL's vision DPO: two verdicts about the same two images, of which the true one is chosen. For judges only.

TRL shows a row's one list of images beside the chosen and the rejected text alike, so that it cannot hold a better
and a worse image: what it can train is a model that says which of two images is better.
"""

from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import IMAGE, Format, Sample, embedded, with_images
from plumbline.operators.rewards.formats.pairs import pair_row

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
SCHEMA = with_images(
    pa.schema([("prompt", MESSAGES), ("chosen", MESSAGES), ("rejected", MESSAGES), ("images", pa.list_(IMAGE))]),
    "images",
)
QUESTION = 'Which of the two images shows "{}" better? Please answer 1 or 2.'


def _rows(sample: Sample) -> list[dict[str, Any]]:
    swapped = bool(pair_row(sample, swapped=False)["ranking_id"] & 1)
    pictures = (sample.worst, sample.best) if swapped else (sample.best, sample.worst)
    right, wrong = ("2", "1") if swapped else ("1", "2")
    return [
        {
            "prompt": [{"role": "user", "content": QUESTION.format(sample.prompt)}],
            "chosen": [{"role": "assistant", "content": right}],
            "rejected": [{"role": "assistant", "content": wrong}],
            "images": [embedded(picture) for picture in pictures],
        }
    ]


FORMAT = Format(unit="pair", container="parquet", images="embedded", rows=_rows, schema=SCHEMA)
