"""A stage does what its metrics declare, with their models, and without Ray."""

from pathlib import Path

from plumbline.operators.errors import RowError
from plumbline.pipelines.running.stages import NodeStage, load_models
from plumbline.pipelines.sweeps.computing import stage_context
from tests.bench_of import plan_bench, write_benchmark


def test_images_are_shown_to_a_dual_encoder_by_the_rule_of_every_metric_that_shares_it(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=4)
    original = "+metrics.original={kind: clipscore, variant: original}"
    planned = plan_bench(folder, tmp_path / "store", "metric=[clipscore]", original)
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "similarities"]
    (work,) = planned.plan.work(planned.plan.images)
    cells = [cell for cell in work.cells if cell.node == node.name]
    stage = NodeStage(node, stage_context(planned), load_models(node))
    tables = stage.compute(stage.prepare(work, cells))
    assert set(tables) == {"clipscore", "original"}
    for table in tables.values():
        assert (table["error"].null_count, table["similarity"].null_count) == (4, 0)
    assert tables["clipscore"]["similarity"] != tables["original"]["similarity"]


def test_prompts_can_be_asked_about_one_by_one_and_one_that_kills_its_worker_left_out(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=4)
    planned = plan_bench(folder, tmp_path / "store", "metric=[gecko]")
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "questions"]
    (work,) = planned.plan.work(planned.plan.prompts)
    cells = [cell for cell in work.cells if cell.node == node.name]
    stage = NodeStage(node, stage_context(planned), load_models(node))
    whole = stage.compute(stage.prepare(work, cells))["gecko"].to_pylist()
    refusal = RowError("killed_worker", "it died", retryable=True)
    alone = [
        stage.compute(stage.refuse_row(work, cells, row, refusal) if row == 2 else stage.prepare_row(work, cells, row))[
            "gecko"
        ].to_pylist()
        for row in range(work.shard.rows)
    ]
    assert stage.rows_alone and len(alone) == 4
    assert [row["error"] and row["error"]["kind"] for row in alone[2]] == ["killed_worker"]
    (lost,) = {row["prompt_id"] for row in alone[2]}
    sound = [row for rows_alone in (*alone[:2], alone[3]) for row in rows_alone]
    assert sound == [row for row in whole if row["prompt_id"] != lost]
