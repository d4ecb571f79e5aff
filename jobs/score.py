"""Scores any images whose rows hold their own prompts, without a benchmark."""

import sys

from jobs import sweep
from jobs.command import Command, run_job
from jobs.console import make_console, say
from jobs.ingest import show_rejected
from jobs.words import OF_SWEEPS
from pipelines.config import SweepConfig
from pipelines.endings import worse
from pipelines.ingest.own import take_in

COMMAND = Command(
    "score",
    "Score any images with their prompts: a sweep without a benchmark, with the same tables.\n"
    "images=PATH is a folder of image files that tell their prompts (metadata.jsonl, prompts.txt, a .txt beside each\n"
    "image, or the images' names), with a folder per generator or none; a CSV or JSON Lines table that names image\n"
    "files; WebDataset tars; a saved Hugging Face dataset; or Parquet, a file, a folder, or a folder per generator.\n"
    "metrics=[vqascore,clipscore] chooses metrics,\n"
    "models=shapes the tiny embedded models, benchmark.columns.prompt=NAME what holds the prompts where that is not\n"
    "called prompt, text or caption, and limit=12 the images of the first 12 prompts alone, as a trial.",
    SweepConfig,
    OF_SWEEPS,
    first="images",
)


def main(config: SweepConfig) -> int:
    """Takes image files or tars in where that is needed, and scores; the worse of the two exit codes."""
    own = take_in(config, lambda record: None)
    if own.ingested is None:
        return sweep.main(own.config)
    console = make_console()
    generators = len({shard.generator for shard in own.ingested.shards})
    say(
        console,
        f"{own.ingested.rows} images of {generators} generators, {own.ingested.prompts} prompts: {own.ingested.url}",
    )
    show_rejected(console, own.ingested)
    return worse(own.ingested.exit_code, sweep.main(own.config))


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
