"""An example job: shows the image with the lowest score in a run."""

import sys
from dataclasses import dataclass

from plumbline import open_run
from plumbline.jobs.command import Command, run_job


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstConfig:
    """Options of the job: the store and the metric to read."""

    store: str = "store"
    """Folder of the store."""
    by: str = "vqascore"
    """Metric whose lowest score is shown."""


COMMAND = Command("worst", "Show the image with the lowest score of the latest run.", WorstConfig, first="by")


def main(config: WorstConfig) -> int:
    """Print the generator, id and score of the image with the lowest score in the newest run; return 0."""
    scores = open_run(config.store).read_scores()
    row = scores[scores.metric == config.by].nsmallest(1, "score").iloc[0]
    print(f"{row.generator} {row.image_id}: {row.score:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
