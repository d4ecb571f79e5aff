"""Sweeps with question-based metrics write questions once, answer them once, and score them one by one."""

from pathlib import Path

import pyarrow as pa
import pytest

from plumbline.pipelines.sweeps.questions import plan_questions, write_questions
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import make_sweep_config, plan_bench, run_bench, write_benchmark
from tests.commands import open_store_at

METRIC_OPTION = "metric=[gecko]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    return folder.parent / "store"


@pytest.fixture(scope="module")
def done(folder: Path, store: Path) -> FinishedSweep:
    return run_bench(folder, store, METRIC_OPTION)


def read_cells(store: Path, stage: str, metric: str, folder: Path) -> pa.Table:
    plan = plan_bench(folder, store, METRIC_OPTION).plan
    mine = [cell for cell in plan.cells if cell.recipe.stage == stage and cell.recipe.metric == metric]
    return pa.concat_tables([open_store_at(store).read(cell.path) for cell in mine])


def test_every_question_keeps_its_own_score_and_its_words_of_the_prompt(
    done: FinishedSweep, store: Path, folder: Path
) -> None:
    prompts = plan_bench(folder, store).sources.prompts
    texts = dict(zip(prompts["prompt_id"].to_pylist(), prompts["text"].to_pylist(), strict=True))
    for row in read_cells(store, "scores", "gecko", folder).to_pylist():
        scores = [element["score"] for element in row["elements"] if element["score"] is not None]
        assert row["score"] == pytest.approx(sum(scores) / len(scores)) and row["n_questions"] == len(scores)
        for element in row["elements"]:
            if element["start"] is not None:
                assert texts[row["prompt_id"]][element["start"] : element["end"]] == element["span"]


def test_questions_can_be_written_before_the_images_exist(folder: Path, tmp_path: Path) -> None:
    config = make_sweep_config(
        folder, tmp_path, "metric=[gecko,dsg]", "benchmark.images=null", "benchmark.generators={}"
    )
    written = write_questions(plan_questions(config), lambda progress: None)
    assert set(written.quality) == {"gecko", "dsg"}
    assert written.quality["gecko"].prompts == 8 and written.quality["gecko"].failed == 0
    left = plan_bench(folder, tmp_path, "metric=[gecko,dsg]").plan.missing
    assert {cell.recipe.stage for cell in left} == {"answers", "scores"}
