"""Sweeps reproduce the results of released code: the tests apply its formulas to the same answers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep
from tests.bench_of import plan_bench, read_image_rows, read_prompt_rows, run_plan, write_rows
from tests.commands import open_store_at
from tests.question_packs import ANNOTATION_COLUMNS, make_proposition, write_csv

QUESTIONS = [
    (1, "0", 'Does this figure show "{}"?', "entity - whole"),
    (2, "1", "Is there a triangle?", "entity - whole"),
    (3, "2", "Is there a circle?", "global"),
    (4, "5", "Is there a star?", "global"),
    (5, "3", "Is there a blue triangle?", "attribute - shape"),
    (6, "1,2", "Is there a square?", "relation - spatial"),
]
"""Questions about every prompt; question 4 depends on question 5, which comes later.

For "two green circles", garnet shows a triangle, a circle and a star.
"""

Answers = Mapping[tuple[str, int, str], Sequence[Sequence[float]]]
"""Log-probabilities of the tokens of each choice, keyed by prompt_id, index of the image in its row, and question."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("bench"))


def write_pairs(folder: Path) -> Path:
    """Write four prompts, with one row of two images for each."""
    both = zip(read_image_rows("atlas", 4), read_image_rows("garnet", 4), strict=True)
    rows = [{**one, "image": [one["image"], other["image"]]} for one, other in both]
    write_rows(folder / "images" / "pairs" / "00000.parquet", rows)
    write_rows(folder / "prompts.parquet", read_prompt_rows(4))
    return folder


class SweepScores(NamedTuple):
    scores: Mapping[str, Mapping[str, float | None]]
    """Scores by metric and prompt_id."""
    answers: Answers
    store: Store
    run_id: str


def run(folder: Path, store: Path, *overrides: str) -> SweepScores:
    planned = plan_bench(folder, store, *overrides, "benchmark.name=packed")
    finished = run_plan(planned)
    scores: dict[str, dict[str, float | None]] = defaultdict(dict)
    for row in finished.results.read_scores().to_pylist():
        scores[row["metric"]][row["prompt_id"]] = row["score"]
    opened = open_store_at(planned.store.place.url)
    return SweepScores(scores, read_answers(planned, opened), opened, finished.run_id)


def read_answers(planned: PlannedSweep, store: Store) -> Answers:
    def read_rows(stage: str) -> list[dict[str, Any]]:
        cells = [cell for cell in planned.plan.cells if cell.recipe.stage == stage]
        return [row for cell in cells for row in store.read(cell.path).to_pylist()]

    text_of = {(row["prompt_id"], row["question_id"]): row["text"] for row in read_rows("questions")}
    answers: dict[tuple[str, int, str], Any] = {}
    for row in read_rows("answers"):
        given = row["answers"] or ()
        for place, answer in enumerate(given):
            text = text_of[row["prompt_id"], answer["question_id"]]
            answers[row["prompt_id"], place * row["images"] // len(given), text] = answer["token_logprobs"]
    return answers


def says_yes(logprobs: Sequence[Sequence[float]]) -> bool:
    return sum(logprobs[0]) >= sum(logprobs[1])


def make_annotations() -> list[dict[str, Any]]:
    return [
        make_proposition(one["prompt_id"], one["text"], number, needs, question.format(one["text"]), kind)
        for one in read_prompt_rows(4)
        for number, needs, question, kind in QUESTIONS
    ]


def compute_gated_score(answered: Mapping[int, bool], parents: Mapping[int, Sequence[int]]) -> float:
    """Return the fraction of questions that are answered "yes" and whose parents are all answered "yes".

    DSG's calc_vqa_score and OneIG's alignment_score are defined in this way.
    """
    counts = [yes and all(answered[parent] for parent in parents.get(one, ())) for one, yes in answered.items()]
    return sum(counts) / len(counts)


@pytest.mark.parametrize("convention", ["released", "fixed"])
def test_dsg_counts_a_yes_if_its_parents_are_yes(convention: str, folder: Path, tmp_path: Path) -> None:
    """One question of every prompt depends on "3, shape"; DSG's loader then drops all dependencies of the prompt.

    The convention `released` drops them as well, and `fixed` keeps those that are numbers.
    """
    rows = [row | {"dependency": "3, shape"} if row["proposition_id"] == 5 else row for row in make_annotations()]
    file = write_csv(tmp_path / "dsg.csv", ANNOTATION_COLUMNS, rows)
    given = [f"benchmark.questions={file}", "metric=[dsg_1k]", "benchmark.prompts=${benchmark.questions}"]
    ran = run(folder, tmp_path / "store", "benchmark=dsg_1k", *given, f"benchmark.convention={convention}")
    needed = {number: [int(one) for one in needs.split(",") if one != "0"] for number, needs, _, _ in QUESTIONS}
    for one in read_prompt_rows(4):
        each = [
            compute_gated_score(
                {
                    number: says_yes(ran.answers[one["prompt_id"], image, question.format(one["text"])])
                    for number, _, question, _ in QUESTIONS
                },
                {} if convention == "released" else needed,
            )
            for image in range(2)
        ]
        assert ran.scores["dsg_1k"][one["prompt_id"]] == pytest.approx(sum(each) / 2)
