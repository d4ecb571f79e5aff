"""An ablated metric has its own cells for the stages that the ablation affects, and shares all other cells."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.rows import digest_images
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.operators.stages.graph import check_chain
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.running.stages import NodeStage, load_models
from plumbline.pipelines.sweeps.computing import make_stage_context
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import make_sweep_config, read_image_rows, read_prompt_rows, write_benchmark

DENIED_INPUTS: tuple[Ablation, ...] = ("shuffled_images", "blank_images", "shuffled_words")
METRICS_OPTION = "metric=[vqascore,dsg]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"))


def configure_ablation_sweep(config: SweepConfig) -> SweepConfig:
    """Return the configuration with ablated variants of every metric added."""
    others = {
        f"{name}_{what}": replace(metric, ablation=what)
        for name, metric in config.metrics.items()
        for what in DENIED_INPUTS
    }
    return replace(config, metrics={**config.metrics, **others})


def test_questions_are_shared_and_the_metric_itself_keeps_its_cells(folder: Path, tmp_path: Path) -> None:
    config = make_sweep_config(folder, tmp_path, METRICS_OPTION)
    alone, both = plan_sweep(config).plan, plan_sweep(configure_ablation_sweep(config)).plan
    paths = {cell.path for cell in alone.cells}
    new = [cell for cell in both.cells if cell.path not in paths]
    assert paths < {cell.path for cell in both.cells}
    assert {cell.recipe.stage for cell in new} == {"answers", "scores"}
    assert {cell.recipe.node for cell in new} == {
        "answers:vqa", "answers:vqa:shuffled_images", "answers:vqa:blank_images", "scores",
    }  # fmt: skip


def test_words_cannot_be_shuffled_for_a_metric_that_does_not_declare_them() -> None:
    with pytest.raises(ConfigError, match="no stage that ablation=shuffled_words affects; leave it out"):
        check_chain("entropy", ImageStatisticConfig(statistic="entropy", ablation="shuffled_words"))
    check_chain("vpeval", VpevalConfig(ablation="shuffled_words"))


def test_a_scorer_has_the_same_ablations(folder: Path, tmp_path: Path) -> None:
    config = make_sweep_config(folder, tmp_path, "metric=[vqascore]")
    blind = replace(config.metrics["vqascore"], ablation="blank_images")
    scorer = Scorer(
        ScorerConfig(models=config.models, metrics={"vqascore": config.metrics["vqascore"], "blind": blind})
    )
    shown = [row["image"] for row in read_image_rows("atlas", 2)]
    texts = [row["text"] for row in read_prompt_rows(1)] * 2
    table: pa.Table = scorer.score_table(shown, texts)
    first, second = (row["score"] for row in table.to_pylist() if row["metric"] == "blind")
    assert first == pytest.approx(second, abs=1e-6)
    own = [row["score"] for row in table.to_pylist() if row["metric"] == "vqascore"]
    assert own[0] != pytest.approx(own[1], abs=1e-3)


def test_a_row_that_is_tried_alone_gets_the_same_image_as_in_its_shard(folder: Path, tmp_path: Path) -> None:
    """After a worker has died, rows are computed one by one."""
    config = make_sweep_config(folder, tmp_path, "metric=[clipscore]")
    shuffled = {"clipscore": replace(config.metrics["clipscore"], ablation="shuffled_images")}
    planned = plan_sweep(replace(config, metrics=shuffled))
    (node,) = [item.node for item in planned.plan.nodes if item.node.stage == "similarities"]
    stage = NodeStage(node, make_stage_context(planned), load_models(node))
    work = next(planned.plan.iterate_work(planned.plan.images))
    cells = [cell for cell in work.cells if cell.node == node.name]
    (shard,) = stage.read_windows(work, cells)
    whole = stage.prepare(shard).images.digests
    alone = [stage.prepare(window).images.digests[0] for window in stage.read_windows(work, cells, 1)]
    own = [digest_images([row["image"]]) for row in read_image_rows("atlas", 4)]
    assert whole == alone and sorted(whole) == sorted(own)
    assert all(shown != theirs for shown, theirs in zip(whole, own, strict=True))
