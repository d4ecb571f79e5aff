"""Measures how far generators' images are from reference images, by CMMD or FID."""

import sys

from rich.console import Console

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import EMPTY_CELL, make_console, say, show_table, warn
from plumbline.jobs.display.plan_table import show_cells
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.operators.base.sentences import format_interval, format_number, format_quantity
from plumbline.operators.statistics.compact_letters import compact_letters
from plumbline.pipelines.base.exit_codes import choose_worse_code, compute_exit_code
from plumbline.plugins.distances.distance_config import DistanceConfig
from plumbline.plugins.distances.measuring import (
    USUAL_IMAGES,
    MeasuredDistance,
    MeasuredDistances,
    PlannedDistances,
    measure_distances,
    plan_distances,
)

COMMAND = Command(
    "distance",
    "Measure how far generators' images are from reference images, with intervals:\n"
    "  images=PATH             a folder of images for each generator, or tables; prompts are not needed\n"
    "  reference=PATH          the reference images, such as photographs\n"
    "  distances=[cmmd,fid]    CMMD by default; FID needs some 10,000 images of each set",
    DistanceConfig,
    {
        **{name: f"benchmark.{name}" for name in ("images", "prompts", "generators", "name")},
    },
    first="images",
    stopped=STOPPED_MESSAGE,
)
SIGNIFICANCE = 0.05


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
        result = measure_distances(planned, display.update)
    return _show_result(console, config, planned, result)


def _show_result(console: Console, config: DistanceConfig, planned: PlannedDistances, result: MeasuredDistances) -> int:
    for distance in config.distances:
        _show_distance(console, distance, result)
    for note in dict.fromkeys([*result.notes, *(each.reason for each in result.measured if each.reason)]):
        say(console, note)
    _warn_about_small_sets(console, result)
    code = 0
    for failed in result.failed:
        if failed.failed:
            kinds = ", ".join(f"{count} {kind}" for kind, count in failed.kinds.items())
            warn(console, f"{failed.name}: {failed.failed} of {failed.total} images have no features: {kinds}")
        for problem in failed.problems:
            warn(console, problem)
        code = choose_worse_code(code, compute_exit_code(failed.failed, failed.total, config.max_failed))
    say(console, f"written to {planned.generated.store.place / result.folder}/")
    return code


def _show_distance(console: Console, distance: str, result: MeasuredDistances) -> None:
    """Show a table of the generators, closest first; if two share no letter, their distances differ significantly."""
    measured = sorted((each for each in result.measured if each.distance == distance), key=_get_sort_key)
    pairs = [pair for pair in result.comparisons if pair.distance == distance]
    clear = {frozenset((pair.closer, pair.farther)) for pair in pairs if pair.p_value < SIGNIFICANCE}
    estimated = [each.generator for each in measured if each.estimate is not None]
    letters = compact_letters(estimated, clear) if len(estimated) > 1 else {}
    rows = [
        [
            each.generator,
            str(each.images),
            format_number(each.value),
            EMPTY_CELL if each.estimate is None else format_number(each.estimate.distance),
            EMPTY_CELL if each.estimate is None else format_interval(*each.estimate.interval),
            letters.get(each.generator, EMPTY_CELL),
        ]
        for each in measured
    ]
    columns = ("generator", "images", "released", "without bias", "95% interval", "letters")
    show_table(console, f"{distance.upper()} from the reference, lower is closer", columns, rows, numbers=slice(1, 5))
    if len(estimated) > 1:
        say(
            console, f"{len(clear)} of {format_quantity(len(pairs), 'pair')} of generators are told apart by {distance}"
        )


def _get_sort_key(measured: MeasuredDistance) -> float:
    return measured.value if measured.estimate is None else measured.estimate.distance


def _warn_about_small_sets(console: Console, result: MeasuredDistances) -> None:
    fewest = min((min(each.images, each.reference_images) for each in result.measured), default=USUAL_IMAGES)
    if fewest < USUAL_IMAGES:
        warn(
            console,
            f"the smallest set has {format_quantity(fewest, 'image')}; below {USUAL_IMAGES:,}, the released "
            f"numbers are too "
            "large, and only comparable between sets of equal size",
        )


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
