"""Counts the modules that a worker imports, without a model and with CLIP, and prints the counts as JSON.

python -m tests.benchmarks.worker_imports
"""

import json
import sys

if __name__ == "__main__":
    import plumbline.operators.stages.scores
    import plumbline.pipelines.running.actor  # noqa: F401

    alone, heavy = len(sys.modules), {"torch", "scipy"} & set(sys.modules)  # Ray Data imports pandas
    from plumbline.operators.models.families import make_model_config
    from plumbline.operators.models.loading import load
    from plumbline.operators.models.resolution import resolve_model

    load(resolve_model(make_model_config(family="clip", checkpoint="assets/clip-shapes"), on_gpu=False), "similarity")
    print(json.dumps({"alone": alone, "heavy": sorted(heavy), "with a model": len(sys.modules)}))
