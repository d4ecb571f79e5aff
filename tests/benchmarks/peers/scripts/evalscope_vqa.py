"""VQAScore by evalscope's metric of this name, one image at a time: its call scores each image with each text."""

import json
import sys
from pathlib import Path

from evalscope.metrics.vision.metrics import VQAScore
from evalscope.metrics.vision.t2v_metrics.models.vqascore_models.clip_t5_model import CLIP_T5_MODELS

checkpoint, table, output = map(Path, sys.argv[1:])
CLIP_T5_MODELS["tiny"] = {  # here
    "tokenizer": {"path": str(checkpoint), "model_max_length": 2048},  # here
    "model": {"path": "local/clip-flant5", "conversation": "t5_chat", "image_aspect_ratio": "pad"},  # here
}  # here
metric = VQAScore(model="tiny", device="cpu", cache_dir=str(checkpoint.parents[2]))
metric.model.model.model.float()  # here
with output.open("w") as scores:
    for line in table.open():
        row = json.loads(line)
        (score,) = metric.apply([str(table.parent / row["file_name"])], [row["prompt"]])
        print(json.dumps({"image_id": row["image_id"], "score": float(score)}), file=scores, flush=True)
