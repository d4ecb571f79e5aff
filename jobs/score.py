"""Scores your own images with their prompts; no benchmark is needed."""

import sys

from plumbline.jobs import sweep
from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.jobs.ingest import show_rejections
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.ingest.score_input import ingest_images
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sweeps.planning import check_installed

FULL_KEY_BY_SHORT_KEY = {name: f"benchmark.{name}" for name in ("name", "prompts_from")} | {
    f"columns.{role}": f"benchmark.columns.{role}" for role in ("image", "prompt", "prompt_id", "image_id", "generator")
}
"""Short forms of keys, in addition to the short forms for every sweep; messages about folders use them."""
COMMAND = Command(
    "score",
    "Score your own images with their prompts, and get the same tables as from a sweep:\n"
    "  images=PATH             a folder of images, a table of them, tars or Parquet (docs/images.md)\n"
    "  prompts=FILE            a file of prompts, if the folder has none; images are named by their ids\n"
    "  metrics=[vqascore,...]  metrics to compute; models=shapes: small models that only know shapes\n"
    "  limit=12 name=NAME      only the first 12 prompts; the name of these images in the results\n"
    "  dry_run=true            print the plan, and compute nothing\n\n"
    "Prompts come from a table in the folder (prompts.csv, images.csv, metadata.jsonl), prompts.txt, a\n"
    ".txt file per image, or the images' names; prompts_from=tables, list, beside or names chooses. Each\n"
    "inner folder is a generator. columns.image, .prompt, .prompt_id and .generator name unusual columns.",
    SweepConfig,
    SWEEP_KEYS | FULL_KEY_BY_SHORT_KEY,
    first="images",
    stopped=STOPPED_MESSAGE,
)


def main(config: SweepConfig) -> int:
    """Ingest image files or tars if needed, and score the images; rejected rows count as rows without a score."""
    check_installed(config)
    scored, ingested = ingest_images(config)
    if ingested is not None:
        console = make_console()
        say(console, f"{ingested.rows} images ingested: {ingested.url}")
        show_rejections(console, ingested)
        if not ingested.rows:
            raise ConfigError(f"images {config.benchmark.images}: every image was rejected; the reasons are above")
    return sweep.main(scored)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
