"""Measures how much memory a report needs per row of one metric, and prints it as JSON.

python -m tests.benchmarks.one_metric PROMPTS
"""

import json
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from plumbline.operators.report.metric_figures import MetricInputs, measure_metrics
from plumbline.operators.report.picked_images import MAX_CARDS, compute_gallery_quotas, pick_images
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import Skills
from tests.benchmarks.scripted_sweep import read_peak_megabytes
from tests.benchmarks.size import choose_size

N_GENERATORS = 5
N_ROWS = choose_size(1 << 15, 1 << 10)
"""Number of rows in a part of a run's scores, as `make_part` returns it."""


def make_part(generator: int, first: int, columns: Sequence[str]) -> pa.Table:
    """Return these columns of a generator's scores for N_ROWS prompts, starting at prompt number `first`."""
    ids = [f"prompt-{number:08d}" for number in range(first, first + N_ROWS)]
    made = {
        "image_id": [f"{generator}-{one}" for one in ids],
        "prompt_id": ids,
        "generator": [f"generator-{generator}"] * N_ROWS,
        "metric": ["clipscore"] * N_ROWS,
        "score": np.random.default_rng([generator, first]).normal(0.5, 0.1, N_ROWS),
        "truncated": [False] * N_ROWS,
    }
    return pa.table({name: made[name] for name in columns})


def measure_peak(prompts: int) -> float:
    """Return the peak memory in MB of a report's gallery and pairs, which need individual rows."""
    places = [(generator, first) for generator in range(N_GENERATORS) for first in range(0, prompts, N_ROWS)]
    scores = RunScores([partial(make_part, *place) for place in places])
    quotas = compute_gallery_quotas(scores, scores.metrics, MAX_CARDS)
    figures = measure_metrics(MetricInputs(scores, Skills(()), quotas))
    pick_images(scores, {metric: of_metric.seen for metric, of_metric in figures.items()}, quotas, MAX_CARDS)
    return read_peak_megabytes()


if __name__ == "__main__":
    few, many = N_ROWS, int(sys.argv[1])
    base, peak = measure_peak(few), measure_peak(many)
    rows = N_GENERATORS * many
    print(json.dumps({"rows": rows, "bytes_a_row": (peak - base) * 2**20 / (rows - N_GENERATORS * few)}))
