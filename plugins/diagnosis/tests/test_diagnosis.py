"""A diagnosis computes cells like any sweep, and the run's report shows its results."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metrics.modules import Module
from plumbline.operators.results.question_quality import find_content_words
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.store import Store
from plumbline.plugins.diagnosis.diagnosing import DiagnoseConfig, plan_diagnosis
from plumbline.plugins.diagnosis.diagnosis import Diagnosis
from plumbline.plugins.diagnosis.jobs.diagnose import main
from plumbline.plugins.diagnosis.stored import read_diagnosis
from plumbline.plugins.diagnosis.word_ratings import WordRatings
from tests.bench_of import SMALL_OPTIONS, Bench, read_prompt_rows, write_benchmark
from tests.commands import open_store_at
from tests.jobs.test_damaged_cells import assert_repaired
from tests.operators.tiny.roles import ROLES

N_PROMPTS = 6
ABLATION_NAMES = {"shuffled_images", "blank_images", "shuffled_words"}


def make_config(folder: Path, *overrides: str) -> DiagnoseConfig:
    values = load_values(
        get_command("diagnose"),
        [
            "sweep=shapes", "metric=[vqascore,clipscore,dsg]", "benchmark.name=small",
            f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images",
            f"store={folder.parent}/store", "diagnosis.vqa_models=[clip]", *SMALL_OPTIONS, *overrides,
        ],
    )  # fmt: skip
    return read_config(values, DiagnoseConfig)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "words.csv").write_text("Word,Conc.M\nsquare,4.2\ncircle,4.5\nRed,4.0\n,3\n")
    return write_benchmark(folder / "small", count=N_PROMPTS)


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    config = make_config(folder)
    rated = WordRatings(path=str(folder.parent / "words.csv"), word="Word", rating="Conc.M")
    config = replace(config, diagnosis=replace(config.diagnosis, word_ratings={"concreteness": rated}))
    assert main(config) == 0
    return open_store_at(config.store)


@pytest.fixture(scope="module")
def diagnosis(store: Store) -> Diagnosis:
    found = read_diagnosis(store, (store.read_text("runs/latest") or "").strip())
    assert found is not None
    return found


def test_every_metric_has_all_its_possible_ablations(diagnosis: Diagnosis) -> None:
    denied = {(one.metric, one.denied) for one in diagnosis.effects}
    assert denied == {(metric, what) for metric in ("vqascore", "clipscore", "dsg") for what in ABLATION_NAMES} | {
        ("dsg", "answered by clip")
    }
    assert all((one.n, one.n_null) == (2 * N_PROMPTS, 0) for one in diagnosis.effects)


def test_a_metric_that_uses_the_image_gets_worse_with_images_of_other_prompts(diagnosis: Diagnosis) -> None:
    left = {one.metric: one for one in diagnosis.effects if one.denied == "shuffled_images"}
    assert all(left[metric].left < left[metric].whole for metric in ("vqascore", "dsg"))


@pytest.mark.slow
def test_vpevals_word_order_and_vqa_model_are_ablated_and_its_statements_counted_by_module(
    tmp_path: Path,
) -> None:
    """These are ablations 2 and 3 of "What makes a good metric?", whose table 6 has the counts by module."""
    saved = {role: ROLES[role].save(tmp_path / role) for role in ("detector", "reader")}
    models = [f"+models.{role}={{family: {ROLES[role].family}, checkpoint: '{path}'}}" for role, path in saved.items()]
    metric = ["metric=[vpeval]", "metrics.vpeval.replies=json", "metrics.vpeval.max_tokens=512"]
    folder = write_benchmark(tmp_path / "small", ["atlas"], count=4)
    config = make_config(folder, *metric, *models, "diagnosis.ablations=[shuffled_words]")
    assert main(config) == 0
    store = open_store_at(config.store)
    found = read_diagnosis(store, (store.read_text("runs/latest") or "").strip())
    assert found is not None
    assert {(one.denied, one.n_null) for one in found.effects} == {("shuffled_words", 0), ("answered by clip", 0)}
    (asked,) = found.questions
    assert {one.kind for one in found.kinds} <= set(get_args(Module))
    assert sum(one.questions for one in found.kinds) == asked.questions > 0


def test_metrics_are_correlated_with_each_other_and_with_properties_of_prompts(diagnosis: Diagnosis) -> None:
    of_metrics = {(one.metric, one.other) for one in diagnosis.correlations if one.kind == "metric"}
    assert of_metrics == {("vqascore", "clipscore"), ("vqascore", "dsg"), ("clipscore", "dsg")}
    of_prompts = {(one.metric, one.other) for one in diagnosis.correlations if one.kind == "property"}
    every = {
        (metric, name) for metric in ("vqascore", "clipscore", "dsg") for name in ("length", "grade", "concreteness")
    }
    assert of_prompts == every | {("dsg", "questions")}


def test_questions_and_answers_come_from_the_cells(diagnosis: Diagnosis) -> None:
    (asked,) = diagnosis.questions
    assert (asked.metric, asked.prompts, asked.yes_no, asked.yes, asked.majority) == ("dsg", N_PROMPTS, 1, 1, 1)
    assert {one.denied for one in diagnosis.answers} == ABLATION_NAMES | {"", "answered by clip"}
    own = next(one for one in diagnosis.answers if not one.denied)
    assert own.answers == 2 * asked.questions and own.wanted == 1 and own.right == own.yes


def test_the_report_contains_the_diagnosis_and_the_run_contains_no_variants(store: Store) -> None:
    run = Path(store.place.url) / "runs" / (store.read_text("runs/latest") or "").strip()
    page = (run / "report.html").read_text()
    assert "How good the metrics are" in page and "shuffled_images" in page
    assert "| clipscore | shuffled_words |" in (run / "diagnosis/diagnosis.md").read_text().replace("\\", "")
    assert set(store.read_table(f"runs/{run.name}/scores.parquet", ["metric"]).column("metric").to_pylist()) == {
        "vqascore", "clipscore", "dsg",
    }  # fmt: skip


def test_a_second_diagnosis_computes_nothing(folder: Path, store: Store) -> None:
    assert not plan_diagnosis(make_config(folder)).sweep.plan.missing


def test_a_damaged_cell_is_computed_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "metric=[gecko]", count=4)
    assert bench.run(job="diagnose").code == 0
    assert_repaired(bench, "diagnose", "scores")


def test_impossible_diagnoses_are_refused_before_anything_is_computed(folder: Path) -> None:
    planned = plan_diagnosis(make_config(folder, "metric=[vqascore]"))
    assert len(planned.notes) == 1 and "without vqascore:answered by clip: vqascore model" in planned.notes[0]
    with pytest.raises(ConfigError, match="no model has the role 'clap'; roles are"):
        plan_diagnosis(make_config(folder, "diagnosis.vqa_models=[clap]"))


def test_word_lists_parses_and_unrated_words_are_measured(folder: Path, tmp_path: Path) -> None:
    """Footnote 3 of "What makes a good metric?" (Ross et al.) describes the three ways to count unrated words."""
    texts = {str(row["prompt_id"]): str(row["text"]) for row in read_prompt_rows(N_PROMPTS)}
    (tmp_path / "classes.csv").write_text('classes\n"square, Circle,traffic_light"\nstar\n')
    parses = {name: f"(NP {' '.join(f'(X {word})' for word in text.split())})" for name, text in texts.items()}
    broken, foreign, lacking, *_ = random.Random(1).sample(sorted(texts), 4)
    rows = list((parses | {broken: "(NP (X a)", foreign: "(NP (X elephant))"}).items())
    rows = [(name, parse) for name, parse in rows if name != lacking] + [("p-unknown", "(")]
    random.Random(2).shuffle(rows)
    lines = ["prompt_id,parse", *(f'{name},"{parse}"' for name, parse in rows)]
    (tmp_path / "parses.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "rated.csv").write_text("word,rating\nsquare,4.2\ncircle,4.5\n")
    planned = plan_diagnosis(
        make_config(
            folder,
            f"+diagnosis.word_ratings.imagenet={{path: {tmp_path}/classes.csv, word: classes, rating: null}}",
            *(
                f"+diagnosis.word_ratings.{unrated}={{path: {tmp_path}/rated.csv, unrated: {unrated}}}"
                for unrated in ("lowest", "zero", "left_out")
            ),
            f"diagnosis.parses={{path: {tmp_path}/parses.csv}}",
        )
    )
    for name, text in texts.items():
        found = {key: float(one.look_up(hash_ids([name]))[0]) for key, one in planned.measured.items()}
        listed = [word in ("square", "circle", "star") for word in list_content_words(text)]
        assert found["imagenet"] == pytest.approx(sum(listed) / len(listed))
        rated = [{"square": 4.2, "circle": 4.5}.get(word) for word in list_content_words(text)]
        assert found["zero"] == pytest.approx(sum(one or 0 for one in rated) / len(rated))
        assert found["lowest"] == pytest.approx(sum(one or 4.2 for one in rated) / len(rated))
        known = [one for one in rated if one is not None]
        assert found["left_out"] == pytest.approx(sum(known) / len(known) if known else math.nan, nan_ok=True)
        spoilt = name in (broken, foreign, lacking)
        assert found["yngve"] == pytest.approx(math.nan if spoilt else (len(text.split()) - 1) / 2, nan_ok=True)
    where = {name: place for place, (name, _) in enumerate(rows)}
    notes = "\n".join(planned.notes)
    assert f"parses.csv, row {where[broken]}: unclosed brackets: 1" in notes
    assert f"parses.csv, row {where[foreign]}: expected a parse of" in notes and "found one of 'elephant'" in notes
    assert f"diagnosis.parses: 3 of {N_PROMPTS} prompts have no valid parse" in notes


def list_content_words(text: str) -> list[str]:
    return [text[start:end].casefold() for start, end in find_content_words(text)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "+diagnosis.word_ratings.a={path: x.csv, rating: null, unrated: left_out}",
            "count as 0 if the list has no ratings",
        ),
        ("diagnosis.parses={path: FOLDER/words.csv}", "set diagnosis.parses.prompt_id and diagnosis.parses.parse"),
        (
            "diagnosis.parses={path: FOLDER/words.csv, prompt_id: Word, parse: Word}",
            "none of its prompts are in the bench",
        ),
    ],
)
def test_unusable_word_lists_and_parses_are_refused(folder: Path, option: str, message: str) -> None:
    with pytest.raises((ConfigError, SourceError), match=message):
        plan_diagnosis(make_config(folder, option.replace("FOLDER", str(folder.parent))))


def test_the_message_about_a_word_list_without_its_columns_names_the_options_to_set(folder: Path) -> None:
    config = make_config(folder)
    rated = WordRatings(path=str(folder.parent / "words.csv"))
    config = replace(config, diagnosis=replace(config.diagnosis, word_ratings={"concreteness": rated}))
    with pytest.raises(SourceError, match=r"set diagnosis\.word_ratings\.concreteness\.word and"):
        plan_diagnosis(config)
