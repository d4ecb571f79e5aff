"""verl-omni's offline DPO table, but for the latents and embeddings that its own model makes of these images."""

from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import Format, Sample

NEGATIVE_PROMPT = " "
"""The default of verl-omni's own script."""
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.string()),
        ("negative_prompt", pa.string()),
        ("img_win", pa.string()),
        ("img_lose", pa.string()),
        ("win_score", pa.float64()),
        ("lose_score", pa.float64()),
        ("uid", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("raw_prompt", pa.string()),
                    ("raw_negative_prompt", pa.string()),
                ]
            ),
        ),
    ]
)
"""Paths are relative to the table's own folder, as the dataset class reads them of a single file.

The prompt is plain text: of Parquet, pandas makes an array of a list of messages, which the class does not take for
messages.
"""


def _rows(sample: Sample) -> list[dict[str, Any]]:
    info = {
        "split": sample.split,
        "index": sample.number,
        "raw_prompt": sample.prompt,
        "raw_negative_prompt": NEGATIVE_PROMPT,
    }
    return [
        {
            "data_source": "plumbline",
            "prompt": sample.prompt,
            "negative_prompt": NEGATIVE_PROMPT,
            "img_win": f"../{sample.best.path}",
            "img_lose": f"../{sample.worst.path}",
            "win_score": sample.best.reward,
            "lose_score": sample.worst.reward,
            "uid": f"{sample.best.uid}|{sample.worst.uid}",
            "reward_model": {"style": "model", "ground_truth": sample.prompt},
            "extra_info": info,
        }
    ]


FORMAT = Format(unit="pair", container="parquet", images="files", rows=_rows, schema=SCHEMA)
