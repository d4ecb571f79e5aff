"""Evaluates many steps of a training run on tiny images, and prints the memory and the CPU seconds per step as JSON."""

import json
import sys
import tempfile
import time
from pathlib import Path

import plumbline
from plugins.training_loop.tests.drawn_shapes import make_pipeline


def read_resident_megabytes() -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Evaluate as many steps as the first argument says; measure after each quarter of them."""
    n_steps = int(sys.argv[1])
    found: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        evaluation = plumbline.Evaluation(
            benchmark="shapes", models="shapes", metrics=["clipscore", "edge_density"], limit=16, folder=folder
        )
        began = time.process_time()
        for step in range(1, n_steps + 1):
            evaluation.step(make_pipeline(step / n_steps), step=step)
            if step % (n_steps // 4) == 0:
                seconds = (time.process_time() - began) / (n_steps // 4)
                found[step] = (read_resident_megabytes(), seconds)
                began = time.process_time()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
