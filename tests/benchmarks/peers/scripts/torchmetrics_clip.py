"""CLIPScore by torchmetrics, one pair at a time: the metric returns the mean of the pairs that it is given together."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchmetrics.multimodal import CLIPScore
from transformers import CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

checkpoint, table, output = map(Path, sys.argv[1:])
tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"), pad_token="<pad>")  # here
processor = CLIPImageProcessor.from_pretrained(checkpoint)  # here


def process(text=None, images=None, **options):  # here
    return processor(images, return_tensors="pt") if text is None else tokenizer(text, **options)  # here


metric = CLIPScore(lambda: (CLIPModel.from_pretrained(checkpoint), process)).eval()
with output.open("w") as scores:
    for line in table.open():
        row = json.loads(line)
        image = Image.open(table.parent / row["file_name"]).convert("RGB")
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        with torch.inference_mode():
            score = metric(pixels, row["prompt"]).item() / 100
        print(json.dumps({"image_id": row["image_id"], "score": score}), file=scores, flush=True)
