"""A score is arithmetic on stored answers or similarities; where there are none it is null and keeps the error."""

import math
from typing import Any, get_args

import pyarrow as pa
import pytest

from operators import rows
from operators.errors import RowError
from operators.metrics.clipscore import ClipScoreConfig, Variant
from operators.metrics.vqascore import Reduction, VqaScoreConfig
from operators.scores import score

IDS = {"image_id": "i", "prompt_id": "p", "generator": "gen"}
FAILED = rows.error_value(RowError("corrupt_image", "it does not decode"))


def answers_table(*questions: list[list[float]], error: Any = None) -> pa.Table:
    """One image's answers: for every question the log-probabilities of the tokens of its choices."""
    answers = [{"question_id": str(number), "token_logprobs": choices} for number, choices in enumerate(questions)]
    return rows.table([{**IDS, "answers": None if error else answers, "error": error}], rows.ANSWERS)


def similarity_table(similarity: float, *, truncated: bool = False) -> pa.Table:
    return rows.table([{**IDS, "similarity": similarity, "truncated": truncated}], rows.SIMILARITIES)


def only_row(table: pa.Table) -> dict[str, Any]:
    assert table.schema == rows.SCORES
    (row,) = table.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("mean", math.sqrt(0.5 * 0.125)), ("product", 0.0625), ("first", 0.5)]
)
def test_vqascore_of_two_tokens_is_what_the_reduction_says(reduction: Reduction, expected: float) -> None:
    answers = answers_table([[math.log(0.5), math.log(0.125)]])
    row = only_row(score(answers, "vqascore", VqaScoreConfig(reduction=reduction)))
    assert row["score"] == pytest.approx(expected, rel=1e-6)
    assert (row["metric"], row["n_questions"], row["error"]) == ("vqascore", 1, None)
    assert {name: row[name] for name in IDS} == IDS


def test_only_the_first_choice_counts() -> None:
    answers = answers_table([[math.log(0.25)], [math.log(0.75)]])
    assert only_row(score(answers, "m", VqaScoreConfig()))["score"] == pytest.approx(0.25)


def test_several_questions_are_averaged_after_the_reduction() -> None:
    answers = answers_table([[math.log(0.5), math.log(0.5)]], [[math.log(0.25), math.log(1.0)]], [[math.log(0.125)]])
    row = only_row(score(answers, "m", VqaScoreConfig(reduction="product")))
    assert row["score"] == pytest.approx((0.25 + 0.25 + 0.125) / 3)
    assert row["n_questions"] == 3


@pytest.mark.parametrize(
    ("variant", "cosine", "expected"),
    [
        ("cosine", 0.25, 0.25),
        ("cosine", -0.25, -0.25),
        ("original", 0.25, 0.625),
        ("original", -0.25, 0.0),
        ("torchmetrics", 0.25, 25.0),
        ("torchmetrics", -0.25, 0.0),
    ],
)
def test_clipscore_is_the_cosine_in_the_variants_scale(variant: Variant, cosine: float, expected: float) -> None:
    row = only_row(score(similarity_table(cosine), "clipscore", ClipScoreConfig(variant=variant)))
    assert row["score"] == expected
    assert row["n_questions"] is None


def test_truncation_is_passed_on() -> None:
    for truncated in (True, False):
        table = similarity_table(0.5, truncated=truncated)
        assert only_row(score(table, "m", ClipScoreConfig()))["truncated"] is truncated


@pytest.mark.parametrize("reduction", get_args(Reduction))
def test_a_failed_answer_gives_no_score_and_keeps_its_error(reduction: Reduction) -> None:
    row = only_row(score(answers_table(error=FAILED), "m", VqaScoreConfig(reduction=reduction)))
    assert row["score"] is None
    assert row["n_questions"] is None
    assert row["error"] == FAILED
    assert {name: row[name] for name in IDS} == IDS


@pytest.mark.parametrize("variant", get_args(Variant))
def test_a_failed_similarity_gives_no_score_and_keeps_its_error(variant: Variant) -> None:
    failed = rows.table([{**IDS, "error": FAILED}], rows.SIMILARITIES)
    row = only_row(score(failed, "m", ClipScoreConfig(variant=variant)))
    assert row["score"] is None
    assert row["error"] == FAILED


def test_scores_keep_the_order_of_the_rows_and_a_failed_one_costs_only_itself() -> None:
    records: list[dict[str, Any]] = [
        {"image_id": "a", "prompt_id": "p", "generator": "gen", "similarity": 0.5, "truncated": False},
        {"image_id": "b", "prompt_id": None, "generator": "gen", "error": FAILED},
        {"image_id": "c", "prompt_id": "q", "generator": "gen", "similarity": 0.25, "truncated": True},
    ]
    table = score(rows.table(records, rows.SIMILARITIES), "clipscore", ClipScoreConfig())
    assert table["image_id"].to_pylist() == ["a", "b", "c"]
    assert table["score"].to_pylist() == [0.5, None, 0.25]


@pytest.mark.parametrize(
    ("schema", "metric"), [(rows.ANSWERS, VqaScoreConfig()), (rows.SIMILARITIES, ClipScoreConfig())]
)
def test_an_empty_cell_gives_an_empty_table_of_scores(schema: pa.Schema, metric: Any) -> None:
    table = score(schema.empty_table(), "m", metric)
    assert (table.num_rows, table.schema) == (0, rows.SCORES)
