"""The cosine of CLIP's embeddings by open_clip, in batches of 64."""

import json
import sys
from pathlib import Path

import open_clip
import torch
from PIL import Image

checkpoint, table, output = map(Path, sys.argv[1:])
model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{checkpoint}")
tokenizer = open_clip.get_tokenizer(f"local-dir:{checkpoint}")
model.eval()
rows = [json.loads(line) for line in table.open()]
with output.open("w") as scores, torch.inference_mode():
    for start in range(0, len(rows), 64):
        batch = rows[start : start + 64]
        images = torch.stack([preprocess(Image.open(table.parent / row["file_name"])) for row in batch])
        image_features = model.encode_image(images, normalize=True)
        text_features = model.encode_text(tokenizer([row["prompt"] for row in batch]), normalize=True)
        for row, score in zip(batch, (image_features * text_features).sum(-1).tolist(), strict=True):
            print(json.dumps({"image_id": row["image_id"], "score": score}), file=scores, flush=True)
