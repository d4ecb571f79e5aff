"""Shows the mean scores of a run's questions by kind (category, level or dimension), over all images."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import EMPTY_CELL, make_console, show_table
from plumbline.pipelines.store.store import open_existing_store
from plumbline.plugins.diagnosis.question_kinds import KindsConfig, KindScore, compute_kind_scores

COMMAND = Command("kinds", "Show the mean scores of questions by kind, over each generator's images.", KindsConfig)


def main(config: KindsConfig) -> int:
    """Print a table with a row for each kind and the mean score of each generator, level by level; return 0."""
    console = make_console()
    pooled = compute_kind_scores(open_existing_store(config), config.run, config.of)
    generators = sorted({row.generator for row in pooled})
    cells = {(row.level, row.kind, row.generator): row for row in pooled}
    rows = [
        [str(level), kind, *(_format_cell(cells.get((level, kind, generator))) for generator in generators)]
        for level, kind in dict.fromkeys((row.level, row.kind) for row in pooled)
    ]
    show_table(console, f"{config.of} by kind", ("level", "kind", *generators), rows, numbers=slice(2, None))
    return 0


def _format_cell(row: KindScore | None) -> str:
    return EMPTY_CELL if row is None else f"{row.mean:.4f} ({row.n})"


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
