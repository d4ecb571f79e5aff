"""Scores a benchmark on S3 with one metric, batch after batch and without Plumbline, for comparison.

python -m tests.benchmarks.bare_scores clipscore|vqascore PROMPTS IMAGES
"""

import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import fsspec
import pyarrow.parquet as pq
import torch
from PIL import Image

ASSETS_FOLDER = Path(__file__).parent.parent.parent / "assets"
BATCH_SIZE = 64
Scorer = Callable[[Sequence[Image.Image], Sequence[str]], list[float]]


def load_clip_scorer() -> Scorer:
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    folder = ASSETS_FOLDER / "clip-shapes"
    model, processor = CLIPModel.from_pretrained(folder), CLIPImageProcessorPil.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(pictures: Sequence[Image.Image], prompts: Sequence[str]) -> list[float]:
        words = tokenizer([*prompts], padding=True, return_tensors="pt")
        seen = model(**words, pixel_values=processor(images=[*pictures], return_tensors="pt").pixel_values)
        return [float(cosine) for cosine in (seen.image_embeds * seen.text_embeds).sum(-1)]

    return score


def load_vqa_scorer() -> Scorer:
    from plumbline.operators.models.calls import Question
    from plumbline.operators.models.families import make_model_config
    from plumbline.operators.models.loading import load
    from plumbline.operators.models.resolution import resolve_model
    from tests.operators.tiny import make_vqascore

    folder, metric = ASSETS_FOLDER / "clip-flant5-shapes", make_vqascore()
    config = make_model_config(
        family="clip_flant5", checkpoint=str(folder), image_batch=BATCH_SIZE, pair_batch=BATCH_SIZE
    )
    model: Any = load(resolve_model(config, on_gpu=False), "likelihood")

    def score(pictures: Sequence[Image.Image], prompts: Sequence[str]) -> list[float]:
        features = model.encode([model.preprocess(picture) for picture in pictures])
        asked = [Question(n, metric.question(prompt), (metric.answer,)) for n, prompt in enumerate(prompts)]
        return [math.exp(fmean(choices[0])) for choices in model.likelihood(features, asked)]

    return score


SCORERS = {"clipscore": load_clip_scorer, "vqascore": load_vqa_scorer}

if __name__ == "__main__":
    metric, prompts_file, images = sys.argv[1:]
    fs, scores = fsspec.url_to_fs(images)[0], []
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(prompts_file, filesystem=fs).to_pylist()}
    score = SCORERS[metric]()
    for file in sorted(fs.glob(f"{images}/*/*.parquet")):
        for batch in pq.ParquetFile(fs.open(file)).iter_batches(BATCH_SIZE, columns=["prompt_id", "image"]):
            rows = batch.to_pylist()
            pictures = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
            with torch.inference_mode():
                scores += score(pictures, [texts[row["prompt_id"]] for row in rows])
    print(json.dumps({"images": len(scores), "mean": sum(scores) / len(scores)}))
