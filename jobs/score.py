"""Scores any images whose rows hold their own prompts, without a benchmark."""

import sys

from plumbline.jobs import sweep
from plumbline.jobs.command import KEPT, Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.jobs.ingest import show_rejected
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.ingest.score_input import take_in
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sweeps.planning import check_installed

SHORT = {name: f"benchmark.{name}" for name in ("name", "prompts_from")} | {
    f"columns.{role}": f"benchmark.columns.{role}" for role in ("image", "prompt", "prompt_id", "image_id", "generator")
}
"""Short forms of longer keys, besides those of every sweep; messages about folders use them."""
COMMAND = Command(
    "score",
    "Score any images with their prompts: a sweep without a benchmark, with the same tables.\n\n"
    "  images=PATH            a folder of image files, a table that names them, tars, or Parquet (docs/images.md)\n"
    "  prompts=FILE           a file of prompts whose ids are in the images' names, if the folder has none\n"
    "  metrics=[vqascore,...] what is computed; models=shapes takes small models that only know coloured shapes\n"
    "  limit=12               the images of the first 12 prompts, as a trial; dry_run=true only prints the plan\n\n"
    "Prompts are looked for in a table in the folder (prompts.csv, images.csv, metadata.jsonl), in prompts.txt, in a\n"
    ".txt beside each image, or in the images' names; prompts_from=tables, list, beside or names chooses. A folder in\n"
    "the folder is a generator. What is found is printed first. columns.image, .prompt, .prompt_id and .generator\n"
    "name columns that are called otherwise than usual, and name=NAME the images as a benchmark.",
    SweepConfig,
    SWEEP_KEYS | SHORT,
    first="images",
    stopped=KEPT,
)


def main(config: SweepConfig) -> int:
    """Ingest image files or tars if needed, and score; rejected rows count as rows without a score."""
    check_installed(config)
    taken, ingested = take_in(config, lambda record: None)
    if ingested is None:
        return sweep.main(taken)
    console = make_console()
    say(console, f"{ingested.rows} images taken in: {ingested.url}")
    show_rejected(console, ingested)
    if not ingested.rows:
        raise ConfigError(f"images {config.benchmark.images}: every image was rejected; the reasons are above")
    return sweep.main(taken)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
