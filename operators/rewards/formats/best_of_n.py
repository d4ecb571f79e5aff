"""The best image of each prompt, with its text: what trainers of text-to-image models fine-tune on."""

from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import IMAGE, Format, Sample, embedded, with_images

SCHEMA = with_images(
    pa.schema(
        [
            ("image", IMAGE),
            ("text", pa.string()),
            ("prompt_id", pa.string()),
            ("image_id", pa.string()),
            ("generator", pa.string()),
            ("reward", pa.float64()),
            ("z_score", pa.float64()),
            ("n", pa.int64()),
            ("mean_reward", pa.float64()),
        ]
    ),
    "image",
)
"""`n` is of how many images the best was taken, and `mean_reward` their mean."""


def _rows(sample: Sample) -> list[dict[str, Any]]:
    rewards = [picture.reward for picture in sample.pictures if picture.reward is not None]
    return [
        {
            "image": embedded(sample.best),
            "text": sample.prompt,
            "prompt_id": sample.prompt_id,
            "image_id": sample.best.image_id,
            "generator": sample.best.generator,
            "reward": sample.best.reward,
            "z_score": sample.best.z_score,
            "n": len(rewards),
            "mean_reward": sum(rewards) / len(rewards),
        }
    ]


FORMAT = Format(unit="best", container="parquet", images="embedded", rows=_rows, schema=SCHEMA)
