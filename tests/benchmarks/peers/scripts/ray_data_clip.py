"""The cosine of CLIP's embeddings by ray.data.map_batches and transformers, as Ray's pages on batch inference show."""

import sys
from pathlib import Path

import numpy as np
import ray
import torch
from PIL import Image
from transformers import AutoModel, AutoProcessor

checkpoint, table, output = map(Path, sys.argv[1:])


def read_image(row):
    row["image"] = np.asarray(Image.open(table.parent / row["file_name"]).convert("RGB"))
    return row


class ClipScorer:
    def __init__(self):
        self.model = AutoModel.from_pretrained(checkpoint).eval()
        self.processor = AutoProcessor.from_pretrained(checkpoint)

    def __call__(self, batch):
        texts, images = list(batch["prompt"]), list(batch["image"])
        inputs = self.processor(text=texts, images=images, return_tensors="pt", padding=True, truncation=True)
        with torch.inference_mode():
            outputs = self.model(**inputs)
        scores = torch.nn.functional.cosine_similarity(outputs.image_embeds, outputs.text_embeds)
        return {"image_id": batch["image_id"], "score": scores.numpy()}


rows = ray.data.read_json(str(table), lines=True).repartition(16).map(read_image)
rows.map_batches(ClipScorer, batch_size=64, compute=ray.data.ActorPoolStrategy(size=1)).write_parquet(str(output))
