"""One row an image: every metric's own score, the reward made of them, and how it stands among its prompt's images."""

from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import Format, Sample

RAW = pa.list_(pa.struct([("metric", pa.string()), ("score", pa.float64()), ("error", pa.string())]))
SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("prompt_id", pa.string()),
        ("generator", pa.string()),
        ("prompt", pa.string()),
        ("reward", pa.float64()),
        ("z_score", pa.float64()),
        ("rank_advantage", pa.float64()),
        ("raw", RAW),
    ]
)
"""`reward`, `z_score` and `rank_advantage` are null where a metric has no score, and `raw` says why."""


def _rows(sample: Sample) -> list[dict[str, Any]]:
    image = sample.best
    raw = [{"metric": name, "score": score, "error": image.errors.get(name)} for name, score in image.raw.items()]
    ids = {"image_id": image.image_id, "prompt_id": sample.prompt_id, "generator": image.generator}
    standing = {name: getattr(image, name) for name in ("reward", "z_score", "rank_advantage")}
    return [{**ids, "prompt": sample.prompt, **standing, "raw": raw}]


FORMAT = Format(unit="image", container="parquet", images="none", rows=_rows, schema=SCHEMA)
