"""Measures the memory for scoring one video, and prints it as JSON.

python -m tests.benchmarks.one_clip VIDEO
"""

import json
import sys
from pathlib import Path

from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from tests.bench_of import SHAPES_FOLDER
from tests.benchmarks.scripted_sweep import read_peak_megabytes
from tests.operators import tiny

if __name__ == "__main__":
    vqa = make_model_config(family="clip_flant5", checkpoint=str(SHAPES_FOLDER.parent / "clip-flant5-shapes"))
    limits = ImageLimits(max_seconds=600)
    scorer = Scorer(ScorerConfig(models={"vqa": vqa}, metrics={"vqascore": tiny.make_vqascore()}, limits=limits))
    (row,) = scorer.score_table([Path(sys.argv[1])], ["a red circle"]).to_pylist()
    assert row["error"] is None, row["error"]
    print(json.dumps({"score": row["score"], "peak": read_peak_megabytes()}))
