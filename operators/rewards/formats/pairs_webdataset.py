"""Pick-a-Pic v2 as WebDataset tars: what diffusers' diffusion ORPO example reads."""

import json
from typing import Any

from plumbline.operators.rewards.formats.format import Format, Sample
from plumbline.operators.rewards.formats.pairs import pair_row


def _rows(sample: Sample) -> list[dict[str, Any]]:
    """The better image is always the first: the trainer compares a label, which it has read as text, with a number, and
    so takes jpg_0 for the better one whatever the label says.
    """
    columns = pair_row(sample, swapped=False)
    other = {name: value for name, value in columns.items() if not name.startswith("jpg_")}
    return [
        {
            "jpg_0.jpg": columns["jpg_0"],
            "jpg_1.jpg": columns["jpg_1"],
            "label_0.txt": b"1",
            "label_1.txt": b"0",
            "original_prompt.txt": sample.prompt.encode(errors="replace"),
            "json": json.dumps({**other, "created_at": other["created_at"].isoformat()}).encode(),
        }
    ]


FORMAT = Format(unit="pair", container="tar", images="embedded", rows=_rows)
