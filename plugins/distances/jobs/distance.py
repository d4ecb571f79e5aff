"""Measures how far generators' images are from reference images, by CMMD or FID."""

import sys

from rich.console import Console

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_sentence, show_table, warn
from plumbline.jobs.display.plan_table import show_cells
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.exit_codes import choose_worse_code, compute_exit_code
from plumbline.pipelines.report.report import write_report
from plumbline.plugins.distances.distance_config import DistanceConfig
from plumbline.plugins.distances.measuring import PlannedDistances, measure_distances, plan_distances
from plumbline.plugins.distances.results import DistanceResults
from plumbline.plugins.distances.section import (
    describe_failed_images,
    describe_small_sets,
    make_table,
    write_sentences,
)

COMMAND = Command(
    "distance",
    "Measure how far generators' images are from reference images, with intervals:\n"
    "  run=RUN                 the images of a run (default: the newest), whose report then shows the distances\n"
    "  images=PATH             instead, a folder of images for each generator, or tables; prompts are not needed\n"
    "  reference=PATH          the reference images, such as photographs\n"
    "  distances=[cmmd,fid]    CMMD by default; FID needs some 10,000 images of each set",
    DistanceConfig,
    {
        **{name: f"benchmark.{name}" for name in ("images", "prompts", "generators", "name")},
    },
    first="images",
    otherwise="~benchmark",
    stopped=STOPPED_MESSAGE,
)


def main(config: DistanceConfig) -> int:
    """Measure the distances, writing a log; return the exit code."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _run(make_console(), config)


def _run(console: Console, config: DistanceConfig) -> int:
    """Show the plan, compute missing features, show the distances, and name the folder with the results.

    Return 0 if all images have features, 2 if failures are within the budget, otherwise 1.
    """
    planned = plan_distances(config)
    for name, sweep in (("reference", planned.reference), ("generators", planned.generated)):
        images = sum(shard.rows for shard in sweep.plan.images.of_shard)
        say(console, f"{name}: {format_quantity(images, 'image')} in {sweep.config.benchmark.images}")
        show_cells(console, sweep, full=False)
    if config.dry_run:
        return 0
    with ProgressDisplay(console) as display:
        results = measure_distances(planned, display.update)
    return _show_results(console, config, planned, results)


def _show_results(console: Console, config: DistanceConfig, planned: PlannedDistances, results: DistanceResults) -> int:
    for distance in config.distances:
        table = make_table(results, distance)
        show_table(console, table.title, table.names, table.rows, numbers=slice(1, 5))
        for sentence in write_sentences(results, distance):
            show_sentence(console, sentence)
    small = describe_small_sets(results.distances)
    if small:
        warn(console, small)
    code = 0
    for failed in results.failed:
        if failed.failed:
            warn(console, describe_failed_images(failed))
        for problem in failed.problems:
            warn(console, problem)
        code = choose_worse_code(code, compute_exit_code(failed.failed, failed.total, config.max_failed))
    store = planned.generated.store
    say(console, f"written to {store.place / results.folder}/")
    if planned.run_id is not None:
        say(console, f"report: {write_report(store, planned.run_id, cluster=config.cluster).url}")
    return code


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
