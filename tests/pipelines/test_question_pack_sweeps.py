"""Sweeps over a benchmark's own questions take prompts, questions and expected answers from one released file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.questions import plan_questions, write_questions
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import plan_bench, read_prompt_rows, run_plan, write_benchmark
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Server, make_token_completion
from tests.question_packs import (
    ANNOTATION_COLUMNS,
    make_choice_question,
    make_propositions,
    write_csv,
    write_json,
    write_propositions,
    write_tifa_v1,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)


def plan_pack_sweep(folder: Path, store: Path, pack: str, questions: Path, *overrides: str) -> PlannedSweep:
    given = [f"benchmark={pack}", "benchmark.name=packed", f"benchmark.questions={questions}", f"metric=[{pack}]"]
    return plan_bench(folder, store, *given, "benchmark.prompts=${benchmark.questions}", *overrides)


class SweptPack(NamedTuple):
    """A finished sweep with DSG-1k's questions, shared by tests that do not write."""

    plan: PlannedSweep
    finished: FinishedSweep
    store: Path
    questions: Path


@pytest.fixture(scope="module")
def swept(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SweptPack:
    home = tmp_path_factory.mktemp("swept")
    questions = write_propositions(home / "dsg.csv")
    plan = plan_pack_sweep(folder, home / "store", "dsg_1k", questions)
    return SweptPack(plan, run_plan(plan), home / "store", questions)


def read_rows(plan: PlannedSweep, stage: str) -> list[dict[str, Any]]:
    cells = [plan.store.read(cell.path) for cell in plan.plan.cells if cell.recipe.stage == stage]
    return [dict(row) for cell in cells for row in cell.to_pylist()]


def list_element_scores(plan: PlannedSweep) -> list[list[float]]:
    """Return the questions' scores for every row of the plan's scores; the list is empty for a row without any."""
    return [[one["score"] for one in row["elements"] or ()] for row in read_rows(plan, "scores")]


def test_a_sweep_takes_all_its_questions_from_a_released_file(swept: SweptPack) -> None:
    plan, finished = swept.plan, swept.finished
    assert "llm" not in {item.node.name.partition(":")[2] for item in plan.plan.nodes}, "no writer is planned"
    scores = finished.results.read_scores().to_pylist()
    assert finished.exit_code == 0 and len(scores) == 4
    for row, of_questions in zip(scores, list_element_scores(plan), strict=True):
        assert len(of_questions) == row["n_questions"] == 3
        assert row["score"] == pytest.approx(sum(of_questions) / 3)


def test_a_service_compares_multiple_choice_answers_by_letter(folder: Path, tmp_path: Path, server: Server) -> None:
    """Choices of several words get letters as well, because services do not report likelihoods for them."""
    colours = ["light red", "deep blue", "green"]
    rows = [
        row
        for place, one in enumerate(read_prompt_rows(4))
        for row in (
            make_choice_question(one["prompt_id"], one["text"], "what color is it?", colours, colours[place % 3]),
            make_choice_question(one["prompt_id"], one["text"], "is it there?", ["yes", "no"], "yes"),
        )
    ]
    log = {"A": -0.9, "b": -0.6, "C": -3.0, "Yes": -0.2, "No": -2.0}
    server.script = lambda number, body: make_token_completion(*log.items())
    questions = write_json(tmp_path / "tifa.json", rows)
    service = ("model@models.vqa=api", "models.vqa.checkpoint=m", f"models.vqa.key_variable={KEY_VARIABLE}")
    where = (f"models.vqa.endpoint={server.url}", "models.vqa.max_retries=0", "metrics.tifa_v1.answers=likelihood")
    plan = plan_pack_sweep(folder, tmp_path / "store", "tifa_v1", questions, *service, *where)
    assert run_plan(plan).exit_code == 0
    told_to = [body["messages"][0]["content"][1]["text"] for body in server.bodies]
    lettered = "what color is it?\nA. light red\nB. deep blue\nC. green\nAnswer with the letter"
    assert sum(text.startswith(lettered) for text in told_to) == told_to.count("is it there?") == 4
    given = [one["given"] for row in read_rows(plan, "scores") for one in row["elements"]]
    assert sorted(given) == ["deep blue"] * 4 + ["yes"] * 4, "B is the likeliest letter"
    assert sorted(row["score"] for row in read_rows(plan, "scores")) == [0.5, 0.5, 0.5, 1.0]


def test_replies_are_matched_with_the_released_choices(folder: Path, tmp_path: Path) -> None:
    """The score is the fraction of choices that equal the released answer, as in tifa_score.py."""
    plan = plan_pack_sweep(folder, tmp_path / "store", "tifa_v1", write_tifa_v1(tmp_path / "tifa.json"))
    finished = run_plan(plan)
    scores = {row["prompt_id"]: row["score"] for row in finished.results.read_scores().to_pylist()}
    right = {row["question_id"]: row["answer"] for row in read_rows(plan, "questions")}
    chosen = {row["prompt_id"]: row["answers"] for row in read_rows(plan, "answers")}
    assert finished.exit_code == 0 and all(len(answers) == 2 for answers in chosen.values())
    assert scores == {
        prompt_id: sum(one["chosen"] == right[one["question_id"]] for one in answers) / 2
        for prompt_id, answers in chosen.items()
    }


def test_every_machine_checks_for_the_file_of_prompts(folder: Path, tmp_path: Path) -> None:
    """The file is checked like any source, by size and modification time (pipelines/running/driver_environment.py)."""
    plan = plan_pack_sweep(folder, tmp_path / "store", "dsg_1k", write_propositions(tmp_path / "q.csv"))
    (shard,) = plan.sources.prompt_shards
    entry = StorageConfig().locate(shard.url).get_entry()
    assert (shard.size, shard.etag) == (entry.size, entry.etag) and shard.etag


def test_malformed_rows_are_reported_with_file_and_row_and_affect_nothing_else(folder: Path, tmp_path: Path) -> None:
    """The problems are an unknown prompt, an unreadable row, and a prompt that is missing from the pack."""
    known = pq.read_table(folder / "prompts.parquet").to_pylist()
    about = [
        make_choice_question(one["prompt_id"], one["text"], "is there a circle?", ["yes", "no"], "yes")
        for one in known[:3]
    ]
    rows = [*about[:2], {**about[2], "question": "is it red?"}, {**about[1], "answer": "?"}]
    stranger = make_choice_question("elsewhere", "a dog", "is there a dog?", ["yes", "no"], "yes")
    questions = write_json(tmp_path / "tifa.json", [*rows, stranger])
    prompts = f"benchmark.prompts={folder}/prompts.parquet"
    plan = plan_pack_sweep(folder, tmp_path / "store", "tifa_v1", questions, prompts)
    refused, strange = plan.sources.pack_problems
    assert refused.startswith(f"{questions}, row 3: expected the answer '?'")
    assert strange.startswith(f"{questions}, row 4: prompt_id 'elsewhere' is not among the benchmark's prompts")
    scores = run_plan(plan).results.read_scores().to_pylist()
    assert [row["error"] and row["error"]["kind"] for row in scores] == [None, None, None, "no_questions"]
    assert scores[3]["score"] is None and known[3]["prompt_id"] in scores[3]["error"]["message"]


def test_prompts_with_other_ids_are_found_by_their_texts(folder: Path, tmp_path: Path) -> None:
    known = pq.read_table(folder / "prompts.parquet").to_pylist()
    rows = [row for one in known for row in make_propositions(f"item_{one['prompt_id']}", one["text"] + " ")]
    prompts = f"benchmark.prompts={folder}/prompts.parquet"
    plan = plan_pack_sweep(
        folder, tmp_path / "store", "dsg_1k", write_csv(tmp_path / "q.csv", ANNOTATION_COLUMNS, rows), prompts
    )
    assert plan.sources.pack_problems == ()
    assert run_plan(plan).exit_code == 0


def test_changed_questions_change_the_cells_but_a_copy_of_the_file_does_not(
    folder: Path, swept: SweptPack, tmp_path: Path
) -> None:
    store = swept.store
    copied = plan_pack_sweep(folder, store, "dsg_1k", write_propositions(tmp_path / "copy.csv"))
    assert not copied.plan.missing
    rows = [row for one in pq.read_table(folder / "prompts.parquet").to_pylist()
            for row in make_propositions(one["prompt_id"], one["text"])[:2]]  # fmt: skip
    fewer = plan_pack_sweep(folder, store, "dsg_1k", write_csv(tmp_path / "fewer.csv", ANNOTATION_COLUMNS, rows))
    assert len(fewer.plan.missing) == len(fewer.plan.cells)
    assert {len(scores) for scores in list_element_scores(run_planned(fewer))} == {2}


def run_planned(plan: PlannedSweep) -> PlannedSweep:
    run_plan(plan)
    return plan


def test_changing_the_arithmetic_asks_no_model_again(folder: Path, swept: SweptPack) -> None:
    again = plan_pack_sweep(folder, swept.store, "dsg_1k", swept.questions, "metrics.dsg_1k.zeroing=recursive")
    assert {cell.recipe.stage for cell in again.plan.missing} == {"scores"}


def test_the_questions_can_be_listed_without_images(folder: Path, tmp_path: Path) -> None:
    plan = plan_pack_sweep(folder, tmp_path / "store", "dsg_1k", write_propositions(tmp_path / "q.csv"))
    written = write_questions(plan_questions(plan.config), lambda progress: None)
    assert written.quality["dsg_1k"].prompts == 4 and written.quality["dsg_1k"].failed == 0


def test_a_report_does_not_need_the_file_of_questions(folder: Path, tmp_path: Path) -> None:
    questions = write_propositions(tmp_path / "q.csv")
    prompts = f"benchmark.prompts={folder}/prompts.parquet"
    plan = plan_pack_sweep(folder, tmp_path / "store", "dsg_1k", questions, prompts)
    finished = run_plan(plan)
    questions.unlink()
    written = write_report(plan.store, finished.run_id)
    assert written.page.warnings == []


def test_a_file_that_changes_after_the_plan_fails_its_cells(folder: Path, tmp_path: Path) -> None:
    questions = write_propositions(tmp_path / "q.csv")
    plan = plan_pack_sweep(folder, tmp_path / "store", "dsg_1k", questions)
    write_propositions(questions, count=3)
    errors = run_plan(plan).results.read_errors().to_pylist()
    assert len(errors) == 4 and all("have changed since the run was planned" in row["message"] for row in errors)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["benchmark.question_pack=null"], "questions and question_pack together"),
        (["benchmark.question_pack=dsg1k"], "did you mean dsg_1k"),
        (["benchmark.question_pack=null", "benchmark.questions=null"], "needs questions that come with the benchmark"),
        (["metrics.dsg_1k.aggregate=soft_mean", "metrics.dsg_1k.zeroing=null"], "use aggregate=share"),
        (["benchmark.questions=/nowhere/q.csv"], "not found"),
    ],
)
def test_an_impossible_configuration_is_refused_in_one_line(
    overrides: list[str], said: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_pack_sweep(folder, tmp_path / "store", "dsg_1k", write_propositions(tmp_path / "q.csv"), *overrides)
