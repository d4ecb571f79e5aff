"""Scores any images whose rows hold their own prompts, without a benchmark."""

import sys

from plumbline.jobs import sweep
from plumbline.jobs.command import KEPT, Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.jobs.ingest import show_rejected
from plumbline.jobs.overrides import OF_SWEEPS
from plumbline.operators.errors import ConfigError
from plumbline.pipelines.ingest.score_input import take_in
from plumbline.pipelines.plans.sweep_config import SweepConfig

SHORT = {name: f"benchmark.{name}" for name in ("name", "prompts_from")} | {
    f"columns.{role}": f"benchmark.columns.{role}" for role in ("image", "prompt", "prompt_id", "image_id", "generator")
}
"""What may be written for longer keys, beside those of every sweep; messages about folders name keys so."""
COMMAND = Command(
    "score",
    "Score any images with their prompts: a sweep without a benchmark, with the same tables.\n"
    "images=PATH is a folder of image files, with a folder per generator or none; a CSV or JSON Lines table that\n"
    "names image files; WebDataset tars; a saved Hugging Face dataset; or Parquet, a file, a folder, or a folder per\n"
    "generator. A folder of image files tells their prompts by a table in it (images.csv, metadata.jsonl), by\n"
    "prompts.txt, by a .txt beside each image, or by the images' names: what is taken is printed, and\n"
    "prompts_from=tables, list, beside or names chooses. Beside a benchmark's prompts (benchmark=imgedit and\n"
    "benchmark.prompts=FILE), the images' names are the prompts' ids. metrics=[vqascore,clipscore] chooses metrics,\n"
    "models=shapes the tiny embedded models, benchmark.columns.prompt=NAME and .generator=NAME what holds prompts and\n"
    "generators where they are called otherwise than usual, name=NAME how the images are called as a benchmark, and\n"
    "limit=12 the images of the first 12 prompts alone, as a trial.",
    SweepConfig,
    OF_SWEEPS | SHORT,
    first="images",
    stopped=KEPT,
)


def main(config: SweepConfig) -> int:
    """Take image files or tars in if that is needed, and score; rejected rows count as rows without a score."""
    own = take_in(config, lambda record: None)
    if own.ingested is None:
        return sweep.main(own.config)
    console = make_console()
    say(console, f"{own.ingested.rows} images taken in: {own.ingested.url}")
    show_rejected(console, own.ingested)
    if not own.ingested.rows:
        raise ConfigError(f"images {config.benchmark.images}: every image was rejected; the reasons are above")
    return sweep.main(own.config)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
