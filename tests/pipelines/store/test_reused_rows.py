"""When a cell is recomputed, its model is only called for rows that no earlier cell contains."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import Generation, Request
from plumbline.operators.models.families.dual_encoders import ClipSimilarity
from plumbline.operators.models.networks.causal_lm import CausalLM
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.store.runs import find_newest_run
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep
from tests.bench_of import compute_cells, plan_bench, read_image_rows, read_prompt_rows, write_benchmark, write_rows
from tests.commands import run

BOTH_METRICS_OPTION = "metric=[vqascore,clipscore]"
"""Two metrics whose cells are compared row by row."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "bench", ["atlas"])


@pytest.fixture
def plan(folder: Path) -> Callable[..., PlannedSweep]:
    return lambda *overrides: plan_bench(folder, folder.parent / "store", *overrides)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Yield the number of images that each model has encoded so far."""
    counts = {"vqa": 0, "clip": 0}
    for name, model in (("vqa", ClipFlanT5Likelihood), ("clip", ClipSimilarity)):
        monkeypatch.setattr(model, "encode", count_calls(counts, name, model.encode))
    return counts


def count_calls(counts: dict[str, int], name: str, encode: Callable[..., Any]) -> Callable[..., Any]:
    def encode_counted(self: Any, pixels: Sequence[Any]) -> Any:
        counts[name] += len(pixels)
        return encode(self, pixels)

    return encode_counted


def read_rows(planned: PlannedSweep, stage: str, outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Return the rows of a plan's cells of one stage; drafts are read for the cells whose outcome is a draft."""
    cells = [cell for cell in planned.plan.cells if cell.recipe.stage == stage]
    drafts = {path for path, outcome in outcomes.items() if outcome.state == "draft"}
    tables = [planned.store.read(cell.path, key=cell.key, draft=cell.path in drafts) for cell in cells]
    return [dict(row) for row in pa.concat_tables(tables).to_pylist()]


def test_moving_or_copying_a_folder_of_images_asks_no_model(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    first = plan(BOTH_METRICS_OPTION)
    before = read_rows(first, "scores", compute_cells(first))
    (folder / "images").rename(folder / "moved")
    shutil.copytree(folder / "moved", folder / "copied")
    for images_folder in ("moved", "copied"):
        now = plan(BOTH_METRICS_OPTION, f"benchmark.images={folder}/{images_folder}")
        assert read_rows(now, "scores", compute_cells(now)) == before
    assert encoded == {"vqa": 8, "clip": 8}


@pytest.mark.parametrize(
    ("renamed", "hidden"),
    [
        pytest.param("images/atlas/00000.parquet", "", id="file", marks=pytest.mark.slow),
        pytest.param("images/atlas", "image_id", id="generator"),
    ],
)
def test_renaming_a_file_or_generator_calls_no_model(
    renamed: str, hidden: str, folder: Path, encoded: dict[str, int]
) -> None:
    """No model is called even if the generator's name is part of the image ids."""
    rows = [{name: value for name, value in row.items() if name != hidden} for row in read_image_rows("atlas", 8)]
    write_rows(folder / "images/atlas/00000.parquet", rows)
    sweep_and_read_scores(folder, "store")
    (folder / renamed).rename((folder / renamed).with_name("other" + Path(renamed).suffix))
    after = sweep_and_read_scores(folder, "store")
    assert encoded == {"vqa": 8, "clip": 8}
    assert after == sweep_and_read_scores(folder, "fresh")


def sweep_and_read_scores(folder: Path, store: str) -> list[dict[str, Any]]:
    given = [
        "sweep=shapes",
        BOTH_METRICS_OPTION,
        f"benchmark.prompts={folder}/prompts.parquet",
        f"benchmark.images={folder}/images",
    ]
    place = StorageConfig().locate(str(folder.parent / store))
    assert run("sweep", *given, f"store={place}", "cluster=here", "shard_rows=4").code == 0
    table = Store(place).read_table(f"runs/{find_newest_run(Store(place))}/scores.parquet")
    return [dict(row) for row in table.sort_by([("metric", "ascending"), ("prompt_id", "ascending")]).to_pylist()]


def test_an_edited_prompt_only_recomputes_its_own_images(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    before = plan(BOTH_METRICS_OPTION)
    compute_cells(before)
    assert encoded == {"vqa": 8, "clip": 8}
    edited = read_prompt_rows(8)
    edited[5]["text"] = "two red circles"
    write_rows(folder / "prompts.parquet", edited)
    after = plan(BOTH_METRICS_OPTION)
    compute_cells(after)
    assert encoded == {"vqa": 9, "clip": 9}
    for stage in ("answers", "similarities"):
        old, new = (read_rows(planned, stage, {}) for planned in (before, after))
        assert [one == other for one, other in zip(old, new, strict=True)] == [row != 5 for row in range(8)]
    assert not plan(BOTH_METRICS_OPTION).plan.missing


def test_a_growing_benchmark_only_asks_about_its_new_prompts_and_images(
    tmp_path: Path, encoded: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=6)
    asked = record_texts(monkeypatch)
    store = tmp_path / "store"
    first = plan_bench(folder, store, "metric=[gecko]")
    compute_cells(first)
    known = {prompt["text"] for prompt in read_prompt_rows(6)}
    before = len(asked)
    write_benchmark(folder, ["atlas"], count=8)
    grown = plan_bench(folder, store, "metric=[gecko]")
    compute_cells(grown)
    assert not any(text in request for text in known for request in asked[before:])
    old = {row["prompt_id"]: row["question_id"] for row in read_rows(first, "questions", {})}
    new = {row["prompt_id"]: row["question_id"] for row in read_rows(grown, "questions", {})}
    assert old.items() <= new.items() and len(new) == 8
    assert encoded["vqa"] == 8


def record_texts(monkeypatch: pytest.MonkeyPatch, refuse: str = "") -> list[str]:
    """Return a list that receives the texts for the question writer; texts that contain `refuse` fail temporarily."""
    asked: list[str] = []
    generate = CausalLM.generate

    def answer_and_note(self: CausalLM, requests: Sequence[Request]) -> list[Generation | RowError]:
        texts = [request.messages[0].text for request in requests]
        asked.extend(texts)
        failure = RowError("model_unavailable", "the model did not answer", retryable=True)
        replies = generate(self, requests)
        return [failure if refuse and refuse in text else reply for text, reply in zip(texts, replies, strict=True)]

    monkeypatch.setattr(CausalLM, "generate", answer_and_note)
    return asked


def test_a_draft_of_questions_is_completed_and_its_good_rows_are_kept(
    plan: Callable[..., PlannedSweep], encoded: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_about_text = read_prompt_rows(8)[2]["text"]
    with monkeypatch.context() as patch:
        record_texts(patch, refuse=fail_about_text)
        first = plan("metric=[gecko]")
        outcomes = compute_cells(first)
    drafted = read_rows(first, "questions", outcomes)
    assert sorted(outcome.state for outcome in outcomes.values()) == ["committed"] * 4 + ["draft"] * 4
    asked = record_texts(monkeypatch)
    second = plan("metric=[gecko]")
    compute_cells(second)
    assert asked and all(fail_about_text in text for text in asked)
    good = [row for row in drafted if row["error"] is None]
    assert [row for row in read_rows(second, "questions", {}) if row["prompt"] != fail_about_text] == good
    assert encoded["vqa"] == 8 + 1, "only the image whose questions were missing"
    assert all(row["error"] is None for row in read_rows(second, "scores", {}))


def test_a_draft_of_answers_is_completed_and_its_good_rows_are_kept(
    plan: Callable[..., PlannedSweep], encoded: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read_prompt_rows(1)[0]["text"]
    with monkeypatch.context() as patch:
        patch.setattr(ClipFlanT5Likelihood, "likelihood", make_failing_likelihood(text))
        first = plan("metric=[vqascore]")
        outcomes = compute_cells(first)
    before = encoded["vqa"]
    drafted = read_rows(first, "answers", outcomes)
    assert sum(row["error"] is not None for row in drafted) == 1
    second = plan("metric=[vqascore]")
    compute_cells(second)
    assert encoded["vqa"] == before + 1
    completed = read_rows(second, "answers", {})
    assert all(row["error"] is None for row in completed)
    assert [row for row in completed if row["image_id"] != drafted[0]["image_id"]] == drafted[1:]


def make_failing_likelihood(text: str) -> Callable[..., Any]:
    likelihood = ClipFlanT5Likelihood.likelihood

    def fail_about_text(self: ClipFlanT5Likelihood, features: Any, questions: Sequence[Any]) -> Any:
        if any(text in question.text for question in questions):
            raise MemoryError("out of memory")
        return likelihood(self, features, questions)

    return fail_about_text


OTHER_WRITER = "metrics.gecko.coverage=false"
"""Option that changes how questions are written, so that the same prompts get other questions cells."""


@pytest.mark.parametrize("keeps_name", [False, True], ids=["under the name it took the place of", "under its own name"])
def test_no_row_is_reused_from_a_cell_with_another_recipe(
    keeps_name: bool, folder: Path, plan: Callable[..., PlannedSweep]
) -> None:
    first, second = plan("metric=[gecko]"), plan("metric=[gecko]", OTHER_WRITER)
    compute_cells(second)
    for target, source in zip(list_question_files(first), list_question_files(second), strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target.with_name(source.name) if keeps_name else target)
    edited = read_prompt_rows(8)
    edited[1]["text"] = edited[5]["text"] = "two red circles"
    write_rows(folder / "prompts.parquet", edited)
    after = plan("metric=[gecko]")
    compute_cells(after)
    fresh = plan("metric=[gecko]", f"store={folder.parent}/fresh")
    compute_cells(fresh)
    assert read_rows(after, "questions", {}) == read_rows(fresh, "questions", {})
    assert read_rows(after, "questions", {}) != read_rows(second, "questions", {})


def list_question_files(planned: PlannedSweep) -> list[Path]:
    return [
        Path((planned.store.place / cell.path).path) for cell in planned.plan.cells if cell.recipe.stage == "questions"
    ]


def test_a_raised_limit_only_computes_the_images_refused_before(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    rows = read_image_rows("atlas", 8)
    largest = max(len(row["image"]) for row in rows)
    refused = sum(len(row["image"]) == largest for row in rows)
    first = plan(BOTH_METRICS_OPTION, f"limits.max_bytes={largest - 1}")
    assert {outcome.state for outcome in compute_cells(first).values()} == {"committed"}
    errors = [row["error"] for row in read_rows(first, "answers", {}) if row["error"] is not None]
    assert [error["kind"] for error in errors] == ["image_too_large"] * refused
    assert encoded["vqa"] == 8 - refused
    second = plan(BOTH_METRICS_OPTION)
    compute_cells(second)
    assert encoded == {"vqa": 8, "clip": 8}
    assert all(row["error"] is None for row in read_rows(second, "scores", {}))


def test_a_lowered_limit_refuses_images_accepted_before(folder: Path, plan: Callable[..., PlannedSweep]) -> None:
    largest = max(len(row["image"]) for row in read_image_rows("atlas", 8))
    compute_cells(plan(BOTH_METRICS_OPTION))
    lowered = plan(BOTH_METRICS_OPTION, f"limits.max_bytes={largest - 1}")
    compute_cells(lowered)
    assert "image_too_large" in {(row["error"] or {}).get("kind") for row in read_rows(lowered, "answers", {})}


def test_rows_of_other_images_are_not_reused(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    compute_cells(plan(BOTH_METRICS_OPTION))
    swapped = read_image_rows("atlas", 8)
    for one, other in zip(swapped, reversed(read_image_rows("atlas", 8)), strict=True):
        one["image"] = other["image"]
    write_rows(folder / "images/atlas/00000.parquet", swapped)
    compute_cells(plan(BOTH_METRICS_OPTION))
    assert encoded == {"vqa": 16, "clip": 16}


def test_touching_or_rewriting_a_file_costs_no_call_for_its_old_images(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    first = plan(BOTH_METRICS_OPTION)
    compute_cells(first)
    before = read_rows(first, "answers", {})
    replaced = read_image_rows("atlas", 8)
    replaced[3]["image"] = read_image_rows("flint", 8)[3]["image"]
    write_rows(folder / "images/atlas/00000.parquet", replaced)
    second = plan(BOTH_METRICS_OPTION)
    compute_cells(second)
    assert encoded == {"vqa": 8 + 1, "clip": 8 + 1}
    after = read_rows(second, "answers", {})
    assert [one == other for one, other in zip(before, after, strict=True)] == [row != 3 for row in range(8)]


def test_only_an_image_replaced_at_its_address_is_scored_again(
    folder: Path, plan: Callable[..., PlannedSweep], encoded: dict[str, int]
) -> None:
    """The key contains the version of the file at an address."""
    places = folder / "images/atlas"
    rows = read_image_rows("atlas", 4)
    for number, row in enumerate(rows):
        (places / f"{number}.png").write_bytes(row["image"])
    addresses = [{**row, "image": None, "uri": str(places / f"{n}.png")} for n, row in enumerate(rows)]
    schema = pa.schema([(name, pa.string()) for name in ("image_id", "prompt_id", "uri")])
    pq.write_table(pa.Table.from_pylist(addresses, schema=schema), places / "00000.parquet")
    (places / "1.png").unlink()
    first = plan(BOTH_METRICS_OPTION)
    compute_cells(first)
    assert encoded["vqa"] == 3 and plan(BOTH_METRICS_OPTION).plan.missing
    (places / "1.png").write_bytes(rows[1]["image"])
    compute_cells(plan(BOTH_METRICS_OPTION))
    assert encoded["vqa"] == 4 and not plan(BOTH_METRICS_OPTION).plan.missing
    (places / "2.png").write_bytes(read_image_rows("flint", 8)[2]["image"])
    last = plan(BOTH_METRICS_OPTION)
    compute_cells(last)
    assert encoded["vqa"] == 5 and not plan(BOTH_METRICS_OPTION).plan.missing
    (places / "3.png").unlink()
    gone = plan(BOTH_METRICS_OPTION)
    outcomes = compute_cells(gone)
    kinds = [(row["error"] or {}).get("kind") for row in read_rows(gone, "scores", outcomes)]
    assert kinds == 2 * ([None] * 3 + ["missing_image"])
