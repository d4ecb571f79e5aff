"""VQAScore by t2v_metrics, in batches of 16 pairs; all texts of an image are one entry of the data set."""

import json
import sys
from pathlib import Path

import t2v_metrics
from t2v_metrics.models.vqascore_models.clip_t5_model import CLIP_T5_MODELS

checkpoint, table, output = map(Path, sys.argv[1:])
CLIP_T5_MODELS["tiny"] = {  # here
    "tokenizer": {"path": str(checkpoint), "model_max_length": 2048},  # here
    "model": {"path": str(checkpoint), "conversation": "t5_chat", "image_aspect_ratio": "pad"},  # here
}  # here
model = t2v_metrics.VQAScore(model="tiny", device="cpu", cache_dir=str(output.parent / "cache"))
model.model.model.float()  # here
rows_by_file = {}
for line in table.open():
    row = json.loads(line)
    rows_by_file.setdefault(row["file_name"], []).append(row)
dataset = [
    {"images": [str(table.parent / file)], "texts": [row["prompt"] for row in rows]}
    for file, rows in rows_by_file.items()
]
found = model.batch_forward(dataset=dataset, batch_size=16)
with output.open("w") as scores:
    for rows, of_image in zip(rows_by_file.values(), found[:, 0].tolist(), strict=True):
        for row, score in zip(rows, of_image, strict=True):
            print(json.dumps({"image_id": row["image_id"], "score": score}), file=scores)
