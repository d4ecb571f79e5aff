"""A plan's stages one after the other in this process: what they compute, without Ray and its actors."""

from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.running import here
from plumbline.pipelines.running.rounds import Report
from plumbline.pipelines.sweeps.sweep import PlannedSweep, stage_context


def compute_here(planned: PlannedSweep, report: Report = lambda progress: None) -> dict[str, Outcome]:
    """What became of the plan's missing cells, reported shard by shard; a shard that fails, fails its cells."""
    return here.compute_here(planned.plan, stage_context(planned), planned.config.cluster, report)
