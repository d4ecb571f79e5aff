"""A plan's stages one after the other in this process: what they compute, without Ray and its actors."""

from pipelines.cells.cells import Outcome
from pipelines.running import here
from pipelines.running.rounds import Report
from pipelines.sweep import PlannedSweep, stage_context


def compute_here(planned: PlannedSweep, report: Report = lambda progress: None) -> dict[str, Outcome]:
    """What became of the plan's missing cells, reported shard by shard; a shard that fails, fails its cells."""
    return here.compute_here(planned.plan, stage_context(planned), planned.config.cluster, report)
