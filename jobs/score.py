"""Scores any images whose rows hold their own prompts, without a benchmark."""

import sys

from jobs.command import Command, run_job
from jobs.sweep import main
from pipelines.config import SweepConfig

COMMAND = Command(
    "score",
    "Score images whose rows hold their own prompts: a sweep without a benchmark, with the same tables.\n"
    "images=PATH is a Parquet file, a folder of them, or a folder of such folders, one per generator;\n"
    "metrics=[vqascore,clipscore] chooses metrics, models=shapes the tiny embedded models, and\n"
    "benchmark.columns.prompt=NAME the column that holds the prompts.",
    SweepConfig,
    {"images": "benchmark.images", "metrics": "metric"},
)

if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
