"""A judge in a sweep uses the benchmark's explanation, checkpoints or checklist for each prompt."""

from pathlib import Path

import pytest

from plugins.third_party_benchmarks.tests.packs import write_pack
from plugins.third_party_benchmarks.tests.ratings import RATING_BY_NAME
from tests.bench_of import run_plan, write_benchmark
from tests.operators.tiny.judges import save_seeing_judge
from tests.pipelines.test_question_pack_sweeps import plan_pack_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)


@pytest.mark.parametrize(("pack", "expected"), [("wise_verified", 1.0), ("unigenbench", 0.5)])
def test_a_judge_uses_the_benchmarks_explanation_or_checkpoints(
    pack: str, expected: float, folder: Path, tmp_path: Path
) -> None:
    """The judge rates each image 1 if there is an explanation, and only passes one of two checkpoints.

    Images and questions are matched by the text of the prompt.
    """
    judge = save_seeing_judge(tmp_path / "judge", RATING_BY_NAME)
    questions = write_pack(pack, tmp_path)
    given = [f"benchmark.prompts={folder}/prompts.parquet", f"+models.vlm={{family: captioner, checkpoint: '{judge}'}}"]
    plan = plan_pack_sweep(folder, tmp_path / "store", pack, questions, *given)
    scores = run_plan(plan).results.read_scores().to_pylist()
    assert [row["score"] for row in scores] == [expected] * 4
    assert not plan_pack_sweep(folder, tmp_path / "store", pack, questions, *given).plan.missing
    compute_kind_scores = pytest.importorskip("plumbline.plugins.diagnosis.question_kinds").compute_kind_scores
    kinds = {row.kind: (row.mean, row.n) for row in compute_kind_scores(plan.store, "latest", pack) if row.level == 1}
    checkpoints = {"Style": (1.0, 4), "Attribute": (0.0, 4)}
    assert kinds == ({"score": (1.0, 4)} if pack == "wise_verified" else checkpoints)


@pytest.mark.parametrize(
    ("pack", "metric", "options", "expected", "kinds"),
    [
        ("bizgeneval", "bizgeneval", [], 1 - 0.1 * 2, {"text1 - easy": (0.5, 8), "text1 - hard": (0.5, 8)}),
        ("bizgeneval", "bizgeneval", ["metrics.bizgeneval.part=hard"], 1 - 0.2 * 1, {}),
        (
            "wegenbench",
            "wegenbench_qa",
            [],
            (30 * 1 + 12 * 0 + 6 * 1) / (30 + 12 + 6),
            {"object": (1, 4), "color": (0, 4), "text": (1, 4)},
        ),
    ],
)
def test_a_judge_answers_a_checklist_and_answers_count_as_in_the_release(
    pack: str,
    metric: str,
    options: list[str],
    expected: float,
    kinds: dict[str, tuple[float, int]],
    folder: Path,
    tmp_path: Path,
) -> None:
    """The judge answers the first and third question with 1, and the others with 0."""
    judge = save_seeing_judge(tmp_path / "judge", RATING_BY_NAME)
    given = [
        f"metric=[{metric}]", f"benchmark.prompts={folder}/prompts.parquet", *options,
        f"+models.vlm={{family: captioner, checkpoint: '{judge}'}}",
    ]  # fmt: skip
    plan = plan_pack_sweep(folder, tmp_path / "store", pack, write_pack(pack, tmp_path), *given)
    rows = run_plan(plan).results.read_scores().to_pylist()
    assert [row["score"] for row in rows] == pytest.approx([expected] * 4)
    compute_kind_scores = pytest.importorskip("plumbline.plugins.diagnosis.question_kinds").compute_kind_scores
    found = {row.kind: (row.mean, row.n) for row in compute_kind_scores(plan.store, "latest", metric)}
    assert {name: found[name] for name in kinds} == kinds
