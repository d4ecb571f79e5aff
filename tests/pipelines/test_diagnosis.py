"""A sweep's metrics are diagnosed by cells like any others, and the run's report says what came of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.jobs.command import command_of, load_values
from plumbline.jobs.diagnose import main
from plumbline.operators.diagnosis.diagnosis import Diagnosis
from plumbline.operators.errors import ConfigError, SourceError
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.report.finished_run import read_diagnosis
from plumbline.pipelines.sweeps.diagnosis import DiagnoseConfig, WordRatings, plan_diagnosis
from tests.bench_of import SMALL, write_benchmark
from tests.commands import store_at

PROMPTS = 6
DENIED = {"shuffled_images", "blank_images", "shuffled_words"}


def diagnose_config(folder: Path, *overrides: str) -> DiagnoseConfig:
    values = load_values(
        command_of("diagnose"),
        [
            "sweep=shapes", "metric=[vqascore,clipscore,dsg]", "benchmark.name=small",
            f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images",
            f"store={folder.parent}/store", "diagnosis.vqa_models=[clip]", *SMALL, *overrides,
        ],
    )  # fmt: skip
    return read_config(values, DiagnoseConfig)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "words.csv").write_text("Word,Conc.M\nsquare,4.2\ncircle,4.5\nRed,4.0\n,3\n")
    return write_benchmark(folder / "small", count=PROMPTS)


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    config = diagnose_config(folder)
    rated = WordRatings(path=str(folder.parent / "words.csv"), word="Word", rating="Conc.M")
    config = replace(config, diagnosis=replace(config.diagnosis, word_ratings={"concreteness": rated}))
    assert main(config) == 0
    return store_at(config.store)


@pytest.fixture(scope="module")
def diagnosis(store: Store) -> Diagnosis:
    found = read_diagnosis(store, (store.read_text("runs/latest") or "").strip())
    assert found is not None
    return found


def test_every_metric_is_denied_what_it_can_be(diagnosis: Diagnosis) -> None:
    denied = {(one.metric, one.denied) for one in diagnosis.effects}
    assert denied == {(metric, what) for metric in ("vqascore", "clipscore", "dsg") for what in DENIED} | {
        ("dsg", "answered by clip")
    }
    assert all((one.n, one.n_null) == (2 * PROMPTS, 0) for one in diagnosis.effects)


def test_a_metric_that_sees_loses_by_the_images_of_other_prompts(diagnosis: Diagnosis) -> None:
    left = {one.metric: one for one in diagnosis.effects if one.denied == "shuffled_images"}
    assert all(left[metric].left < left[metric].whole for metric in ("vqascore", "dsg"))


def test_metrics_are_set_beside_each_other_and_beside_the_prompts(diagnosis: Diagnosis) -> None:
    of_metrics = {(one.metric, one.other) for one in diagnosis.correlations if one.kind == "metric"}
    assert of_metrics == {("vqascore", "clipscore"), ("vqascore", "dsg"), ("clipscore", "dsg")}
    of_prompts = {(one.metric, one.other) for one in diagnosis.correlations if one.kind == "property"}
    every = {
        (metric, name) for metric in ("vqascore", "clipscore", "dsg") for name in ("length", "grade", "concreteness")
    }
    assert of_prompts == every | {("dsg", "questions")}


def test_questions_and_answers_are_those_of_the_cells(diagnosis: Diagnosis) -> None:
    (asked,) = diagnosis.questions
    assert (asked.metric, asked.prompts, asked.yes_no, asked.yes, asked.majority) == ("dsg", PROMPTS, 1, 1, 1)
    assert {one.denied for one in diagnosis.answers} == DENIED | {"", "answered by clip"}
    own = next(one for one in diagnosis.answers if not one.denied)
    assert own.answers == 2 * asked.questions and own.wanted == 1 and own.right == own.yes


def test_the_report_of_the_run_has_the_diagnosis_and_the_run_has_only_the_metrics(store: Store) -> None:
    run = Path(store.place.url) / "runs" / (store.read_text("runs/latest") or "").strip()
    page = (run / "report.html").read_text()
    assert "How good the metrics are" in page and "shuffled_images" in page
    assert "| clipscore | shuffled_words |" in (run / "diagnosis/diagnosis.md").read_text().replace("\\", "")
    assert set(store.read_table(f"runs/{run.name}/scores.parquet", ["metric"]).column("metric").to_pylist()) == {
        "vqascore", "clipscore", "dsg",
    }  # fmt: skip


def test_a_second_diagnosis_computes_nothing(folder: Path, store: Store) -> None:
    assert not plan_diagnosis(diagnose_config(folder)).sweep.plan.missing


def test_what_cannot_be_is_said_before_anything_is_computed(folder: Path) -> None:
    planned = plan_diagnosis(diagnose_config(folder, "metric=[vqascore]"))
    assert len(planned.notes) == 1 and "without vqascore:answered by clip: vqascore model" in planned.notes[0]
    with pytest.raises(ConfigError, match="no model has the role 'clap'; roles are"):
        plan_diagnosis(diagnose_config(folder, "diagnosis.vqa_models=[clap]"))


def test_a_list_of_words_without_its_columns_is_refused_with_the_remedy(folder: Path) -> None:
    config = diagnose_config(folder)
    rated = WordRatings(path=str(folder.parent / "words.csv"))
    config = replace(config, diagnosis=replace(config.diagnosis, word_ratings={"concreteness": rated}))
    with pytest.raises(SourceError, match=r"set diagnosis\.word_ratings\.concreteness\.word and"):
        plan_diagnosis(config)
