"""A plan's stages one after the other in this process: what they compute, without Ray and its actors."""

from pipelines.cells.cells import Outcome
from pipelines.running import here
from pipelines.sweep import PlannedSweep, stage_context


def compute_here(planned: PlannedSweep, report: object = None) -> dict[str, Outcome]:
    """What became of the plan's missing cells; a shard that fails, fails its cells."""
    return here.compute_here(planned.plan, stage_context(planned), planned.config.cluster, lambda progress: None)
