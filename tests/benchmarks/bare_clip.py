"""Computes CLIP's cosine for every image of the embedded benchmark, without Plumbline.

The values are the same as those of a sweep with `metric=[clipscore]`.

python -m tests.benchmarks.bare_clip [GENERATOR ...]
"""

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

ASSETS_FOLDER = Path(__file__).parent.parent.parent / "assets"
BATCH_SIZE = 64

if __name__ == "__main__":
    folder, prompts = (
        ASSETS_FOLDER / "clip-shapes",
        pq.read_table(ASSETS_FOLDER / "shapes" / "prompts.parquet").to_pylist(),
    )
    texts = {row["prompt_id"]: row["text"] for row in prompts}
    model, processor = CLIPModel.from_pretrained(folder), CLIPImageProcessorPil.from_pretrained(folder)
    tokenizer, mean_cosines = AutoTokenizer.from_pretrained(folder), {}
    for generator in sys.argv[1:] or sorted(place.name for place in (ASSETS_FOLDER / "shapes" / "images").iterdir()):
        files = sorted((ASSETS_FOLDER / "shapes" / "images" / generator).glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file, columns=["prompt_id", "image"]).to_pylist()]
        cosines: list[float] = []
        for first in range(0, len(rows), BATCH_SIZE):
            batch = rows[first : first + BATCH_SIZE]
            pictures = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in batch]
            words = tokenizer([texts[row["prompt_id"]] for row in batch], padding=True, return_tensors="pt")
            with torch.inference_mode():
                outputs = model(**words, pixel_values=processor(images=pictures, return_tensors="pt").pixel_values)
            cosines += (outputs.image_embeds * outputs.text_embeds).sum(-1).tolist()
        mean_cosines[generator] = sum(cosines) / len(cosines)
    print(json.dumps({"modules": len(sys.modules), "means": mean_cosines}))
