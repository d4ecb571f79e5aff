"""A score is arithmetic on stored answers or similarities; where there are none it is null and keeps the error."""

import math
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators import rows, schemas
from plumbline.operators.errors import RowError
from plumbline.operators.metrics.clipscore import ClipScoreConfig, Variant
from plumbline.operators.metrics.dsg import DsgConfig
from plumbline.operators.metrics.gecko import GeckoConfig
from plumbline.operators.metrics.tifa import TifaConfig
from plumbline.operators.metrics.vq2 import Vq2Config
from plumbline.operators.metrics.writer import WriterConfig
from plumbline.operators.metrics.writing import WrittenQuestion, identified
from plumbline.operators.models.vqa_profiles import Reduction
from plumbline.operators.stages.scores import WrittenIndex
from tests.operators import tiny
from tests.operators.stages.given import score

IDS = {"image_id": "i", "prompt_id": "p", "generator": "gen"}
FAILED = rows.error_value(RowError("corrupt_image", "it does not decode"))


def answers_table(*questions: list[list[float]]) -> pa.Table:
    """One image's answers: for every question the log-probabilities of the tokens of its choices."""
    answers = [{"question_id": str(number), "token_logprobs": choices} for number, choices in enumerate(questions)]
    return rows.table([{**IDS, "answers": answers}], schemas.ANSWERS)


def similarity_table(similarity: float, *, truncated: bool = False) -> pa.Table:
    return rows.table([{**IDS, "similarity": similarity, "truncated": truncated}], schemas.SIMILARITIES)


def only_row(table: pa.Table) -> dict[str, Any]:
    assert table.schema == schemas.ELEMENT_SCORES
    (row,) = table.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("mean", math.sqrt(0.5 * 0.125)), ("product", 0.0625), ("first", 0.5)]
)
def test_vqascore_of_two_tokens_is_what_the_reduction_says(reduction: Reduction, expected: float) -> None:
    answers = answers_table([[math.log(0.5), math.log(0.125)]])
    row = only_row(score(answers, "vqascore", tiny.vqascore(reduction=reduction)))
    assert row["score"] == pytest.approx(expected, rel=1e-6)
    assert (row["metric"], row["n_questions"], row["error"]) == ("vqascore", 1, None)
    assert {name: row[name] for name in IDS} == IDS


def test_only_the_first_choice_counts() -> None:
    answers = answers_table([[math.log(0.25)], [math.log(0.75)]])
    assert only_row(score(answers, "m", tiny.vqascore()))["score"] == pytest.approx(0.25)


def test_several_questions_are_averaged_after_the_reduction() -> None:
    answers = answers_table([[math.log(0.5), math.log(0.5)]], [[math.log(0.25), math.log(1.0)]], [[math.log(0.125)]])
    row = only_row(score(answers, "m", tiny.vqascore(reduction="product")))
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


@pytest.mark.parametrize(
    ("schema", "metric"), [(schemas.ANSWERS, tiny.vqascore()), (schemas.SIMILARITIES, ClipScoreConfig())]
)
def test_what_failed_gives_no_score_and_keeps_its_error(schema: pa.Schema, metric: Any) -> None:
    row = only_row(score(rows.table([{**IDS, "error": FAILED}], schema), "m", metric))
    assert (row["score"], row["n_questions"], row["error"]) == (None, None, FAILED)
    assert {name: row[name] for name in IDS} == IDS


def test_scores_keep_the_order_of_the_rows_and_a_failed_one_costs_only_itself() -> None:
    records: list[dict[str, Any]] = [
        {"image_id": "a", "prompt_id": "p", "generator": "gen", "similarity": 0.5, "truncated": False},
        {"image_id": "b", "prompt_id": None, "generator": "gen", "error": FAILED},
        {"image_id": "c", "prompt_id": "q", "generator": "gen", "similarity": 0.25, "truncated": True},
    ]
    table = score(rows.table(records, schemas.SIMILARITIES), "clipscore", ClipScoreConfig())
    assert table["image_id"].to_pylist() == ["a", "b", "c"]
    assert table["score"].to_pylist() == [0.5, None, 0.25]


@pytest.mark.parametrize(
    ("schema", "metric"), [(schemas.ANSWERS, tiny.vqascore()), (schemas.SIMILARITIES, ClipScoreConfig())]
)
def test_an_empty_cell_gives_an_empty_table_of_scores(schema: pa.Schema, metric: Any) -> None:
    table = score(schema.empty_table(), "m", metric)
    assert (table.num_rows, table.schema) == (0, schemas.ELEMENT_SCORES)


WRITTEN = [
    {"question_id": "1", "text": "is there a dog?", "span": "dog", "start": 2, "end": 5},
    {"question_id": "2", "text": "is there a cat?", "span": "cat"},
]


def written_index(p_entail: float | None = None, *, error: Any = None) -> WrittenIndex:
    """Two questions about one prompt; the second is entailed with this probability."""
    both = [{"prompt_id": "p", "choices": ["yes", "no"], "answer": "yes", **question} for question in WRITTEN]
    found = [{"prompt_id": "p", "question_id": "1", "p_entail": 0.9}]
    found += [{"prompt_id": "p", "question_id": "2", "p_entail": p_entail, "error": error}]
    entailments = rows.table(found, schemas.ENTAILMENTS) if p_entail is not None or error else None
    return WrittenIndex(rows.table(both, schemas.QUESTIONS), entailments)


def two_answers() -> pa.Table:
    logs = [[[math.log(0.6)], [math.log(0.2)]], [[math.log(0.1)], [math.log(0.3)]]]
    answers = [{"question_id": str(n), "token_logprobs": its} for n, its in enumerate(logs, start=1)]
    return rows.table([{**IDS, "answers": answers}], schemas.ANSWERS)


def test_every_element_of_the_prompt_keeps_its_own_score() -> None:
    row = only_row(score(two_answers(), "gecko", GeckoConfig(nli=None), written_index()))
    assert (row["score"], row["n_questions"]) == (pytest.approx((0.75 + 0.25) / 2, rel=1e-6), 2)
    dog, cat = row["elements"]
    assert (dog["span"], dog["start"], dog["end"], dog["given"]) == ("dog", 2, 5, "yes")
    assert (cat["span"], cat["start"], cat["wanted"], cat["given"]) == ("cat", None, "yes", "no")
    assert [dog["score"], cat["score"]] == pytest.approx([0.75, 0.25], rel=1e-6)


def test_a_question_that_the_prompt_does_not_entail_stays_without_a_score() -> None:
    row = only_row(score(two_answers(), "gecko", GeckoConfig(), written_index(0.001)))
    assert (row["score"], row["n_questions"]) == (pytest.approx(0.75, rel=1e-6), 1)
    assert [element["score"] is None for element in row["elements"]] == [False, True]


def test_where_no_question_is_left_the_score_is_null() -> None:
    row = only_row(score(two_answers(), "gecko", GeckoConfig(threshold=0.95), written_index(0.01)))
    assert (row["score"], row["error"]["kind"]) == (None, "no_questions")


def test_an_entailment_that_failed_leaves_its_prompts_images_without_a_score() -> None:
    failed = rows.error_value(RowError("model_failed", "no memory", retryable=True))
    row = only_row(score(two_answers(), "gecko", GeckoConfig(), written_index(error=failed)))
    assert (row["score"], row["error"]) == (None, failed)


def colour_question(colour: str, *, keep: bool | None = None) -> WrittenQuestion:
    choices = ("red", "blue", "green")
    return WrittenQuestion("1", f"is the dog {colour}?", choices, colour, keep=keep)


def index_of(*questions: WrittenQuestion) -> WrittenIndex:
    table = rows.table([{"prompt_id": "p", **one._asdict()} for one in identified(questions)], schemas.QUESTIONS)
    return WrittenIndex(table, None)


def answers_to(*questions: WrittenQuestion) -> pa.Table:
    """One image's answers, each of which chooses the question's first choice."""
    logs = [[math.log(0.8)], [math.log(0.1)], [math.log(0.1)]]
    given = [
        {"question_id": one.question_id, "token_logprobs": logs, "chosen": one.choices[0]}
        for one in identified(questions)
    ]
    return rows.table([{**IDS, "answers": given}], schemas.ANSWERS)


def test_answers_to_one_writing_of_the_questions_are_never_taken_for_answers_to_another() -> None:
    answers, rewritten = answers_to(colour_question("red")), index_of(colour_question("blue"))
    row = only_row(score(answers, "gecko", GeckoConfig(nli=None), rewritten))
    assert (row["score"], row["elements"]) == (None, None)
    assert (row["error"]["kind"], row["error"]["retryable"]) == ("incomplete_cell", True)
    assert "is the dog blue?" in row["error"]["message"]


@pytest.mark.parametrize("metric", [GeckoConfig(nli=None), DsgConfig(), TifaConfig(), Vq2Config()])
def test_a_missing_answer_is_an_error_and_never_a_no(metric: WriterConfig) -> None:
    asked = [WrittenQuestion(str(n), f"{n}?", ("yes", "no"), "yes") for n in range(2)]
    row = only_row(score(answers_to(asked[0]), "m", metric, index_of(*asked)))
    assert (row["score"], row["error"]["kind"], row["error"]["retryable"]) == (None, "incomplete_cell", True)


def test_an_image_without_its_one_answer_is_an_error_of_its_own_row() -> None:
    row = only_row(score(answers_table(), "vqascore", tiny.vqascore()))
    assert (row["score"], row["error"]["kind"], row["error"]["retryable"]) == (None, "incomplete_cell", True)


def test_answers_to_questions_that_are_asked_no_more_do_not_matter() -> None:
    answers = answers_to(colour_question("red"), colour_question("blue")._replace(question_id="2"))
    row = only_row(score(answers, "gecko", GeckoConfig(nli=None), index_of(colour_question("red"))))
    assert (row["score"], row["n_questions"], row["error"]) == (pytest.approx(0.8, rel=1e-6), 1, None)


def test_a_question_that_the_filter_dropped_needs_no_answer() -> None:
    written = index_of(colour_question("red"), colour_question("blue", keep=False)._replace(question_id="2"))
    row = only_row(score(answers_to(colour_question("red")), "tifa", TifaConfig(), written))
    assert (row["score"], row["n_questions"], row["error"]) == (1.0, 1, None)


def test_an_image_whose_prompt_has_no_questions_has_their_error() -> None:
    failed = rows.error_value(RowError("unreadable_reply", "no form"))
    written = WrittenIndex(rows.table([{"prompt_id": "p", "error": failed}], schemas.QUESTIONS), None)
    assert only_row(score(two_answers(), "m", DsgConfig(), written))["error"] == failed
    nothing = WrittenIndex(schemas.QUESTIONS.empty_table(), None)
    assert only_row(score(two_answers(), "m", DsgConfig(), nothing))["error"]["kind"] == "incomplete_cell"


def test_a_question_without_its_entailment_is_not_scored_as_if_the_prompt_entailed_it() -> None:
    one = index_of(colour_question("red")).questions["p"][0]
    table = rows.table([{"prompt_id": "p", **one._asdict()}], schemas.QUESTIONS)
    other = rows.table([{"prompt_id": "p", "question_id": "another", "p_entail": 0.9}], schemas.ENTAILMENTS)
    written = WrittenIndex(table, other)
    row = only_row(score(answers_to(colour_question("red")), "gecko", GeckoConfig(), written))
    assert (row["score"], row["error"]["kind"]) == (None, "incomplete_cell")
