"""Damaged and outdated cells are recomputed within the run that finds them."""

import io
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plumbline.jobs.display.console import JobConsole
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.writing import hash_content
from plumbline.operators.stages.answers import AnswersStage
from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.store.cells import Cell
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps import computing
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.questions import plan_questions, write_questions
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, plan_bench, run_bench, run_config, run_plan, write_benchmark

METRICS_OPTION = "metric=[clipscore,gecko]"


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedSweep:
    """Return a finished sweep; tests that write use a copy of its store."""
    folder = write_benchmark(tmp_path_factory.mktemp("whole") / "bench", ["atlas"])
    done = run_bench(folder, folder.parent / "store", METRICS_OPTION)
    assert done.exit_code == 0
    return done


@pytest.fixture
def folder(complete_run: FinishedSweep, tmp_path: Path) -> Path:
    """Copy the finished store into the folder of this test; return the folder of the benchmark."""
    origin = Path(complete_run.folder).parent.parent.parent
    shutil.copytree(origin / "store", tmp_path / "store")
    return origin / "bench"


def make_plan(folder: Path, tmp_path: Path) -> PlannedSweep:
    return plan_bench(folder, tmp_path / "store", METRICS_OPTION)


def list_cells(plan: PlannedSweep, stage: str) -> list[Cell]:
    return [cell for cell in plan.plan.cells if cell.recipe.stage == stage]


def flip_bit(store: Store, path: str) -> None:
    file = Path((store.place / path).path)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


def remove_cells(store: Store, *paths: str) -> None:
    for path in paths:
        Path((store.place / path).path).unlink()


def read_scores(done: FinishedSweep) -> dict[tuple[str, str], float]:
    return {(row["metric"], row["image_id"]): row["score"] for row in done.results.read_scores().to_pylist()}


def test_damaged_cells_of_every_stage_are_computed_again_and_counted(
    complete_run: FinishedSweep, folder: Path, tmp_path: Path
) -> None:
    plan = make_plan(folder, tmp_path)
    assert not plan.plan.missing
    harmed = [list_cells(plan, stage)[0] for stage in ("questions", "entailment", "answers", "similarities", "scores")]
    for cell in harmed:
        flip_bit(plan.store, cell.path)
    remove_cells(plan.store, *(cell.path for cell in list_cells(plan, "scores")[1:]))
    totals = ProgressTotals()
    done = run_sweep(make_plan(folder, tmp_path), totals.add)
    assert (done.exit_code, done.results.n_null) == (0, 0)
    assert read_scores(done) == pytest.approx(read_scores(complete_run), abs=1e-5)
    assert {state.cells - state.missing for state in totals.nodes.values()} == {0}, "of all rounds together"
    nodes = {"questions:llm", "entailment:nli", "answers:vqa", "similarities:clip", "scores"}
    assert nodes == totals.nodes.keys() and sum(state.cells for state in totals.nodes.values()) >= done.computed
    counts = read_manifest(plan.store, done.run_id)["counts"]
    assert counts["cells_renewed"] == done.renewed == len(harmed) and counts["cells_failed"] == 0
    assert not make_plan(folder, tmp_path).plan.missing
    for cell in harmed:
        assert plan.store.read(cell.path, key=cell.key) is not None


class ClosedTerminal(io.StringIO):
    """A terminal that has been closed, so that every write fails."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_failing_to_show_progress_is_logged_once_and_does_not_stop_the_sweep(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    console = JobConsole(file=ClosedTerminal())
    with pytest.raises(BrokenPipeError):
        console.print("a line")
    shutil.rmtree(tmp_path / "store/scores")
    done = run_sweep(make_plan(folder, tmp_path), ProgressDisplay(console).update)
    assert (done.exit_code, done.computed) == (0, 4)
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("a progress display failed: ") and "Broken pipe" in said


def reword_first_question(questions: pa.Table) -> pa.Table:
    """Return the questions with a new text, and therefore a new id, for the first one."""
    first, *others = questions.to_pylist()
    text = "is this what it shows?"
    changed = {**first, "text": text, "question_id": hash_content(text, first["choices"], first["answer"])}
    return rows.table([changed, *others], schemas.QUESTIONS)


@pytest.mark.parametrize("rewrite", [lambda table: table.slice(1), reword_first_question], ids=["one less", "another"])
def test_everything_that_depends_on_rewritten_questions_is_computed_again(
    folder: Path, tmp_path: Path, rewrite: Callable[[pa.Table], pa.Table]
) -> None:
    """A question writer may use other words when it writes a lost cell again."""
    plan = make_plan(folder, tmp_path)
    asked = list_cells(plan, "questions")[0]
    written = plan.store.read(asked.path)
    prompt_id = written.column("prompt_id").to_pylist()[0]
    rewritten = rewrite(written)
    assert prompt_id in rewritten.column("prompt_id").to_pylist(), "the prompt has another question"
    remove_cells(plan.store, asked.path)
    plan.store.save(plan.plan.make_cell(asked), rewritten)
    done = run_plan(make_plan(folder, tmp_path))
    assert (done.exit_code, done.results.n_null) == (0, 0)
    [scored] = [
        cell for cell in list_cells(plan, "scores") if asked in plan.plan.list_upstream_cells(cell).get("questions", ())
    ]
    elements = {row["prompt_id"]: row["elements"] for row in plan.store.read(scored.path).to_pylist()}
    now = [row["question_id"] for row in rewritten.to_pylist() if row["prompt_id"] == prompt_id]
    assert [element["question_id"] for element in elements[prompt_id]] == now


def test_only_damaged_questions_are_written_again(folder: Path, tmp_path: Path) -> None:
    plan = make_plan(folder, tmp_path)
    flip_bit(plan.store, list_cells(plan, "questions")[0].path)
    config = make_sweep_config(folder, tmp_path / "store", "metric=[gecko]")
    written = write_questions(plan_questions(config), lambda progress: None)
    assert not written.failed and written.quality["gecko"].failed == 0
    assert plan.store.read(list_cells(plan, "questions")[0].path) is not None


def test_repeated_damage_is_reported_and_loses_no_row(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (tmp_path / "store/runs").glob("*/scores.parquet/*-*.parquet"):
        part.unlink()  # so that it is made from its cells
    plan = make_plan(folder, tmp_path)
    harmed = next(cell for cell in list_cells(plan, "scores") if cell.recipe.metric == "clipscore")

    def damage_before_reading(read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def flip_bit_and_read(self: Store, path: str, **options: object) -> pa.Table:
            if path == harmed.path:
                flip_bit(self, path)
            return read(self, path, **options)

        return flip_bit_and_read

    monkeypatch.setattr(Store, "read", damage_before_reading(Store.read))
    done = run_plan(make_plan(folder, tmp_path))
    kinds = {row["kind"] for row in done.results.read_errors().to_pylist()}
    assert kinds == {"cell_unreadable"} and done.results.n_null == 4 and done.results.rows == 16


def test_a_recomputed_cell_with_a_retryable_failure_is_used_as_a_draft(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answers cell is damaged, and a row fails temporarily when it is recomputed, so the new cell is only a draft.

    The run uses the draft instead of the damaged committed cell, even after a later round finds another damaged cell.
    """
    config = make_sweep_config(folder, tmp_path / "store", "metric=[gecko,clipscore]")  # so that answers are read first
    plan = plan_sweep(config)
    [similar, *_], [answered, *_] = list_cells(plan, "similarities"), list_cells(plan, "answers")
    failing = plan.store.read(answered.path).column("image_id")[0].as_py()
    for cell in (similar, answered):
        flip_bit(plan.store, cell.path)
    remove_cells(plan.store, *(cell.path for cell in list_cells(plan, "scores")))
    tabulate = AnswersStage.tabulate_answers

    def fail_first(stage: AnswersStage, images: Any, index: Any, answers: Sequence[Any]) -> pa.Table:
        answers[0].result = RowError("model_failed", "it may pass", retryable=True)
        return tabulate(stage, images, index, answers)

    monkeypatch.setattr(AnswersStage, "tabulate_answers", fail_first)
    monkeypatch.setattr(computing, "MAX_ROUNDS", 3)  # finds the first damage, then the second, then nothing more
    done = run_config(config)
    errors = done.results.read_errors().to_pylist()
    assert [(row["image_id"], row["metric"], row["kind"]) for row in errors] == [(failing, "gecko", "model_failed")]
    assert done.results.n_null == 1
