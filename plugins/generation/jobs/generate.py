"""Generates images for a benchmark's prompts with an image model, as sharded Parquet that a sweep can read."""

import sys

from rich.console import Console

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.display.leaderboards import show_usage
from plumbline.jobs.display.plan_table import show_cells
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.pipelines.base.exit_codes import COMPLETE
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.plugins.generation.forecast import plan_scoring
from plumbline.plugins.generation.generate_config import GenerateConfig, find_generation, find_scoring_sweep
from plumbline.plugins.generation.generating import GenerationResult, PlannedGeneration, generate, plan_generation

COMMAND = Command(
    "generate",
    "Generate a benchmark's images with a diffusers checkpoint (image_model.checkpoint=FOLDER_OR_HUB_ID), or with\n"
    "an images service (image_model=images_api), into the folder images=PATH. Existing images are kept.",
    GenerateConfig,
    {
        **{name: f"benchmark.{name}" for name in ("images", "prompts", "limit")},
        **{name: f"pictures.{name}" for name in ("name", "cfg", "steps", "size", "sampler", "seed", "seeds")},
    },
    stopped="stopped; the images that were generated are kept; run the same command to continue",
)


def main(config: GenerateConfig) -> int:
    """Generate the images; write a log of the command, and return the exit code."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _plan_and_generate(make_console(), config)


def _plan_and_generate(console: Console, config: GenerateConfig) -> int:
    """Generate missing images; return 0 if all exist, 2 if failures are within the budget, otherwise 1."""
    planned = _plan_and_show(console, config)
    return COMPLETE if config.dry_run else _generate_and_show(console, planned).exit_code


def generate_missing_images(console: Console, config: SweepConfig) -> SweepConfig | None:
    """Generate the missing images of a sweep; return the sweep that scores them.

    First show what it costs to generate and score the images. After a dry run with missing images, return None.
    """
    generation, scoring = find_generation(config), find_scoring_sweep(config)
    if generation is None:
        return scoring
    planned = _plan_and_show(console, generation)
    if planned.needs.missing:
        say(console, "then, to score these images:")
        show_cells(console, plan_scoring(planned, scoring), full=config.dry_run or config.verbose)
    if config.dry_run:
        return None if planned.needs.missing else scoring
    _generate_and_show(console, planned)
    return scoring


def _plan_and_show(console: Console, config: GenerateConfig) -> PlannedGeneration:
    """Plan the generation, show the plan and return it; raise ConfigError if the disk has no space for the images."""
    planned = plan_generation(config)
    _show_generation_plan(console, planned)
    planned.needs.check_space()
    return planned


def _generate_and_show(console: Console, planned: PlannedGeneration) -> GenerationResult:
    with ProgressDisplay(console) as display:
        generated = generate(planned, display.update)
    _show_generation_result(console, generated)
    return generated


def _show_generation_plan(console: Console, planned: PlannedGeneration) -> None:
    config = planned.config
    seeds = f" x {config.pictures.seeds} seeds" if config.pictures.seeds > 1 else ""
    say(
        console, f"{config.benchmark.name}: {planned.prompts} prompts{seeds}, generator {config.image_model.checkpoint}"
    )
    show_cells(console, planned.drawing)
    for line in planned.needs.describe():
        say(console, line)


def _show_generation_result(console: Console, generated: GenerationResult) -> None:
    show_usage(console, generated.usage, generated.costs)
    for address in generated.repaired:
        warn(console, f"{address}: was damaged and has been replaced; if this happens again, check the disk")
    for problem in generated.problems:
        warn(console, problem)
    if generated.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in generated.kinds.items())
        warn(
            console,
            f"{generated.failed} images could not be generated{f': {kinds}' if kinds else ''} (docs/failures.md)",
        )
    say(console, f"{generated.pictures} images, {generated.made} of them new: {generated.url}/")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
