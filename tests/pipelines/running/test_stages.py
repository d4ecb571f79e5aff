"""A stage does what its metrics declare, with their models, and without Ray."""

from pathlib import Path

from pipelines.running.stages import NodeStage, StageContext
from pipelines.sources.uris import Uris
from pipelines.sweep import PlannedSweep, plan_sweep
from tests.bench_of import sweep_config, write_benchmark


def context_of(planned: PlannedSweep) -> StageContext:
    return StageContext(
        store=planned.store,
        storage=planned.config.storage,
        limits=planned.config.limits,
        uris=Uris(roots=(), storage=planned.config.storage, max_bytes=0),
        prompt_shards=tuple(planned.sources.prompt_shards),
    )


def test_images_are_shown_to_a_dual_encoder_by_the_rule_of_every_metric_that_shares_it(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=4)
    original = "+metrics.original={kind: clipscore, variant: original}"
    planned = plan_sweep(sweep_config(folder, tmp_path / "store", "metric=[clipscore]", original))
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "similarities"]
    (work,) = planned.plan.image_work
    cells = [cell for cell in work.cells if cell.node == node.name]
    stage = NodeStage(node, context_of(planned))
    tables = stage.compute(stage.prepare(work, cells))
    assert set(tables) == {"clipscore", "original"}
    for table in tables.values():
        assert (table["error"].null_count, table["similarity"].null_count) == (4, 0)
    assert tables["clipscore"]["similarity"] != tables["original"]["similarity"]
