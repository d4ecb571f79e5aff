"""Stages compute the cells of their metrics with loaded models, as a whole shard or row by row, without Ray."""

from pathlib import Path

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.rows import read_usage
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.running.outcomes import ComputedRows
from plumbline.pipelines.running.stages import NodeStage, load_models
from plumbline.pipelines.sweeps.computing import make_stage_context
from tests.bench_of import compute_cells, plan_bench, write_benchmark


def test_a_shared_dual_encoder_preprocesses_images_by_each_metrics_rule(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=4)
    original = "+metrics.original={kind: clipscore, variant: original}"
    planned = plan_bench(folder, tmp_path / "store", "metric=[clipscore]", original)
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "similarities"]
    (work,) = planned.plan.iterate_work(planned.plan.images)
    cells = [cell for cell in work.cells if cell.node == node.name]
    stage = NodeStage(node, make_stage_context(planned), load_models(node))
    (whole,) = stage.read_windows(work, cells)
    tables = stage.compute(stage.prepare(whole))
    assert set(tables) == {"clipscore", "original"}
    for table in tables.values():
        assert (table["error"].null_count, table["similarity"].null_count) == (4, 0)
    assert tables["clipscore"]["similarity"] != tables["original"]["similarity"]


def test_prompts_can_be_processed_one_by_one_and_the_prompt_that_kills_its_worker_is_left_out(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=4)
    planned = plan_bench(folder, tmp_path / "store", "metric=[gecko]")
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "questions"]
    (work,) = planned.plan.iterate_work(planned.plan.prompts)
    cells = [cell for cell in work.cells if cell.node == node.name]
    stage = NodeStage(node, make_stage_context(planned), load_models(node))
    (shard,) = stage.read_windows(work, cells)
    whole = stage.compute(stage.prepare(shard))["gecko"].to_pylist()
    refusal = RowError("killed_worker", "it died", retryable=True)
    alone = [
        stage.compute(stage.refuse(window, refusal) if row == 2 else stage.prepare(window))["gecko"].to_pylist()
        for row, window in enumerate(stage.read_windows(work, cells, 1))
    ]
    assert stage.can_split_rows and len(alone) == 4
    assert [row["error"] and row["error"]["kind"] for row in alone[2]] == ["killed_worker"]
    (lost,) = {row["prompt_id"] for row in alone[2]}
    sound = [row for rows_alone in (*alone[:2], alone[3]) for row in rows_alone]
    assert sound == [row for row in whole if row["prompt_id"] != lost]


def test_computing_a_shard_in_windows_gives_the_same_rows_in_every_stage_over_images(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=5)
    planned = plan_bench(folder, tmp_path / "store", "metric=[gecko,clipscore]", "shard_rows=5")
    (work,) = planned.plan.iterate_work(planned.plan.images)
    compute_cells(planned)
    nodes = [item.node for item in planned.plan.nodes if STAGES[item.node.stage].row_kind == "images"]
    assert {node.stage for node in nodes} == {"answers", "similarities", "scores"}
    for node in nodes:
        cells = [cell for cell in work.cells if cell.node == node.name]
        stage, made = (
            NodeStage(node, make_stage_context(planned), load_models(node)),
            ComputedRows(cells, make_stage_context(planned)),
        )
        for window in stage.read_windows(work, cells, 2):
            made.add(stage.compute(stage.prepare(window)))
        for cell in cells:
            whole = planned.store.read_cell(cell.path)
            table = made.collect_tables()[cell.metric]
            assert table.column("image_id").equals(whole.table.column("image_id")), node.name
            assert read_usage(table) == whole.to_outcome().usage


def test_finished_rows_of_a_long_running_shard_are_not_computed_again(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", generators=("atlas",), count=5)
    given = (folder, tmp_path / "store", "metric=[clipscore]", "shard_rows=5")
    planned = plan_bench(*given)
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "similarities"]
    (work,) = planned.plan.iterate_work(planned.plan.images)
    (cell,) = [cell for cell in work.cells if cell.node == node.name]
    stage, made = (
        NodeStage(node, make_stage_context(planned), load_models(node)),
        ComputedRows([cell], make_stage_context(planned), seconds=0),
    )
    for window in stage.read_windows(work, [cell], 2)[:2]:
        made.add(stage.compute(stage.prepare(window)))
        made.save_if_due()
    outcomes = compute_cells(plan_bench(*given))
    assert (outcomes[cell.path].rows, outcomes[cell.path].kept) == (5, 4)
