"""A plan's stages one after the other in this process: what they compute, without Ray and its actors."""

from pipelines.cells.cells import Outcome, Work
from pipelines.running.actor import failed_input, failure_of
from pipelines.running.stages import NodeStage, StageContext
from pipelines.sources.uris import benchmark_uris
from pipelines.sweep import PlannedSweep


def compute_here(planned: PlannedSweep, report: object = None) -> dict[str, Outcome]:
    """What became of the plan's missing cells; a shard that fails, fails its cells."""
    context = context_of(planned)
    outcomes: dict[str, Outcome] = {}
    for item in planned.plan.nodes:
        stage = NodeStage(item.node, context) if item.missing else None
        for work in (*planned.plan.work(planned.plan.prompts), *planned.plan.work(planned.plan.images)):
            known = Work(shard=work.shard, cells=work.cells, outcomes=outcomes)
            outcomes |= _compute_shard(stage, known, item.node.name, context) if stage is not None else {}
    return outcomes


def context_of(planned: PlannedSweep) -> StageContext:
    """What the stages of a sweep share."""
    config = planned.config
    return StageContext(
        store=planned.store,
        limits=config.limits,
        clips=config.clips,
        uris=benchmark_uris(config.benchmark, config.storage, config.limits),
        prompt_shards=tuple(planned.sources.prompt_shards),
        packed=planned.sources.packed,
    )


def _compute_shard(stage: NodeStage, work: Work, node: str, context: StageContext) -> dict[str, Outcome]:
    mine = [cell for cell in work.cells if cell.node == node]
    failed = {cell.path: failure for cell in mine if (failure := failed_input(cell, work.outcomes))}
    cells = [cell for cell in mine if cell.path not in failed]
    if not cells:
        return failed
    try:
        tables = stage.compute(stage.prepare(work, cells))
    except Exception as error:
        return failed | {cell.path: failure_of(error) for cell in cells}
    limits = context.limits.semantic()
    return failed | {cell.path: context.store.save(cell, tables[cell.metric], limits=limits) for cell in cells}
