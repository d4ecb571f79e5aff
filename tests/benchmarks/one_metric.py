"""What a report takes in memory for a row of one metric, in a process of its own, as JSON.

python -m tests.benchmarks.one_metric PROMPTS
"""

import json
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from plumbline.operators.report.metric_figures import MetricInputs, measure_metrics
from plumbline.operators.report.picked_images import MAX_CARDS, gallery_quotas, pick_images
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import Skills
from tests.benchmarks.scripted_sweep import peak_megabytes
from tests.benchmarks.size import sized

GENERATORS = 5
ROWS = sized(1 << 15, 1 << 10)
"""Of a part."""


def part(generator: int, first: int, columns: Sequence[str]) -> pa.Table:
    """A score for each of some prompts."""
    ids = [f"prompt-{number:08d}" for number in range(first, first + ROWS)]
    made = {
        "image_id": [f"{generator}-{one}" for one in ids],
        "prompt_id": ids,
        "generator": [f"generator-{generator}"] * ROWS,
        "metric": ["clipscore"] * ROWS,
        "score": np.random.default_rng([generator, first]).normal(0.5, 0.1, ROWS),
        "truncated": [False] * ROWS,
    }
    return pa.table({name: made[name] for name in columns})


def peak_of(prompts: int) -> float:
    """Peak memory in MB up to the end of what a report makes of single rows: its gallery and its pairs."""
    places = [(generator, first) for generator in range(GENERATORS) for first in range(0, prompts, ROWS)]
    scores = RunScores([partial(part, *place) for place in places])
    quotas = gallery_quotas(scores, scores.metrics, MAX_CARDS)
    figures = measure_metrics(MetricInputs(scores, Skills(()), quotas))
    pick_images(scores, {metric: of_metric.seen for metric, of_metric in figures.items()}, quotas, MAX_CARDS)
    return peak_megabytes()


if __name__ == "__main__":
    few, many = ROWS, int(sys.argv[1])
    base, peak = peak_of(few), peak_of(many)
    rows = GENERATORS * many
    print(json.dumps({"rows": rows, "bytes_a_row": (peak - base) * 2**20 / (rows - GENERATORS * few)}))
