"""The cosine of CLIP's embeddings by NeMo Curator's CLIP model, in a stage as its pages on custom stages show it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from nemo_curator.backends.ray_data import RayDataExecutor
from nemo_curator.models.clip import CLIPImageEmbeddings
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.base import ProcessingStage
from nemo_curator.stages.text.io.writer import ParquetWriter
from nemo_curator.tasks import DocumentBatch
from PIL import Image

models, table, output = map(Path, sys.argv[1:])


@dataclass
class ClipScoreStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    name: str = "clip_score"

    def inputs(self):
        return ["data"], ["file_name", "prompt"]

    def outputs(self):
        return ["data"], ["score"]

    def setup(self, worker_metadata=None):
        self.model = CLIPImageEmbeddings(str(models))
        self.model.setup()

    def process(self, task):
        rows = task.to_pandas()
        images = [np.asarray(Image.open(table.parent / name).convert("RGB")) for name in rows["file_name"]]
        products = self.model(images) * self.model.encode_text(list(rows["prompt"]))
        task.data = rows.assign(score=products.sum(-1).numpy())
        return task


rows = pd.DataFrame([json.loads(line) for line in table.open()])
tasks = [DocumentBatch(dataset_name="images", data=rows[start : start + 64]) for start in range(0, len(rows), 64)]
pipeline = Pipeline(name="clip", stages=[ClipScoreStage(), ParquetWriter(str(output), fields=["image_id", "score"])])
pipeline.run(RayDataExecutor(), initial_tasks=tasks)
