"""CLIPScore by imscore, in batches of 64 images of one size; its score is the cosine times CLIP's scale."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from imscore.preference.model import CLIPScore
from PIL import Image

checkpoint, table, output = map(Path, sys.argv[1:])
model = CLIPScore(str(checkpoint)).eval()
rows = [json.loads(line) for line in table.open()]
with output.open("w") as scores, torch.inference_mode():
    scale = model.model.logit_scale.exp()
    for start in range(0, len(rows), 64):
        batch = rows[start : start + 64]
        images = [np.array(Image.open(table.parent / row["file_name"]).convert("RGB")) for row in batch]
        pixels = rearrange(torch.tensor(np.stack(images)), "b h w c -> b c h w") / 255.0
        found = model.score(pixels, [row["prompt"] for row in batch]) / scale
        for row, score in zip(batch, found.tolist(), strict=True):
            print(json.dumps({"image_id": row["image_id"], "score": score}), file=scores, flush=True)
