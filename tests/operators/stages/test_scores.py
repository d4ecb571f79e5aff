"""A score is computed from stored answers or similarities; without them, it is null and the row contains the error."""

import math
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig, Variant
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.operators.stages.scores import WrittenIndex
from tests.operators import tiny
from tests.operators.stages.given import score

ROW_IDS = {"image_id": "i", "prompt_id": "p", "generator": "gen"}
DECODE_ERROR = rows.error_to_dict(RowError("corrupt_image", "the image does not decode"))


def make_answers_table(*questions: list[list[float]]) -> pa.Table:
    """Return one image's answers: the log-probabilities of the tokens of each choice, for every question."""
    answers = [{"question_id": str(number), "token_logprobs": choices} for number, choices in enumerate(questions)]
    return rows.table([{**ROW_IDS, "answers": answers}], schemas.ANSWERS)


def make_similarity_table(similarity: float, *, truncated: bool = False) -> pa.Table:
    return rows.table([{**ROW_IDS, "similarity": similarity, "truncated": truncated}], schemas.SIMILARITIES)


def read_only_row(table: pa.Table) -> dict[str, Any]:
    assert table.schema == schemas.ELEMENT_SCORES
    (row,) = table.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("mean", math.sqrt(0.5 * 0.125)), ("product", 0.0625), ("first", 0.5)]
)
def test_vqascore_of_two_tokens_follows_the_reduction(reduction: Reduction, expected: float) -> None:
    answers = make_answers_table([[math.log(0.5), math.log(0.125)]])
    row = read_only_row(score(answers, "vqascore", tiny.make_vqascore(reduction=reduction)))
    assert row["score"] == pytest.approx(expected, rel=1e-6)
    assert (row["metric"], row["n_questions"], row["error"]) == ("vqascore", 1, None)
    assert {name: row[name] for name in ROW_IDS} == ROW_IDS


def test_only_the_first_choice_counts() -> None:
    answers = make_answers_table([[math.log(0.25)], [math.log(0.75)]])
    assert read_only_row(score(answers, "m", tiny.make_vqascore()))["score"] == pytest.approx(0.25)


def test_several_questions_are_averaged_after_the_reduction() -> None:
    answers = make_answers_table(
        [[math.log(0.5), math.log(0.5)]], [[math.log(0.25), math.log(1.0)]], [[math.log(0.125)]]
    )
    row = read_only_row(score(answers, "m", tiny.make_vqascore(reduction="product")))
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
    row = read_only_row(score(make_similarity_table(cosine), "clipscore", ClipScoreConfig(variant=variant)))
    assert row["score"] == expected
    assert row["n_questions"] is None


def test_truncation_is_passed_on() -> None:
    for truncated in (True, False):
        table = make_similarity_table(0.5, truncated=truncated)
        assert read_only_row(score(table, "m", ClipScoreConfig()))["truncated"] is truncated


@pytest.mark.parametrize(
    ("schema", "metric"), [(schemas.ANSWERS, tiny.make_vqascore()), (schemas.SIMILARITIES, ClipScoreConfig())]
)
def test_a_failed_row_has_no_score_and_keeps_its_error(schema: pa.Schema, metric: Any) -> None:
    row = read_only_row(score(rows.table([{**ROW_IDS, "error": DECODE_ERROR}], schema), "m", metric))
    assert (row["score"], row["n_questions"], row["error"]) == (None, None, DECODE_ERROR)
    assert {name: row[name] for name in ROW_IDS} == ROW_IDS


def test_scores_keep_the_order_of_the_rows_and_a_failed_row_does_not_affect_the_others() -> None:
    records: list[dict[str, Any]] = [
        {"image_id": "a", "prompt_id": "p", "generator": "gen", "similarity": 0.5, "truncated": False},
        {"image_id": "b", "prompt_id": None, "generator": "gen", "error": DECODE_ERROR},
        {"image_id": "c", "prompt_id": "q", "generator": "gen", "similarity": 0.25, "truncated": True},
    ]
    table = score(rows.table(records, schemas.SIMILARITIES), "clipscore", ClipScoreConfig())
    assert table["image_id"].to_pylist() == ["a", "b", "c"]
    assert table["score"].to_pylist() == [0.5, None, 0.25]


@pytest.mark.parametrize(
    ("schema", "metric"), [(schemas.ANSWERS, tiny.make_vqascore()), (schemas.SIMILARITIES, ClipScoreConfig())]
)
def test_an_empty_cell_gives_an_empty_table_of_scores(schema: pa.Schema, metric: Any) -> None:
    table = score(schema.empty_table(), "m", metric)
    assert (table.num_rows, table.schema) == (0, schemas.ELEMENT_SCORES)


WRITTEN_QUESTIONS = [
    {"question_id": "1", "text": "is there a dog?", "span": "dog", "start": 2, "end": 5},
    {"question_id": "2", "text": "is there a cat?", "span": "cat"},
]


def make_index(p_entail: float | None = None, *, error: Any = None) -> WrittenIndex:
    """Return two questions about one prompt; the prompt entails the second question with probability `p_entail`."""
    both = [{"prompt_id": "p", "choices": ["yes", "no"], "answer": "yes", **question} for question in WRITTEN_QUESTIONS]
    found = [{"prompt_id": "p", "question_id": "1", "p_entail": 0.9}]
    found += [{"prompt_id": "p", "question_id": "2", "p_entail": p_entail, "error": error}]
    entailments = rows.table(found, schemas.ENTAILMENTS) if p_entail is not None or error else None
    return WrittenIndex(rows.table(both, schemas.QUESTIONS), entailments)


def make_two_answers() -> pa.Table:
    logs = [[[math.log(0.6)], [math.log(0.2)]], [[math.log(0.1)], [math.log(0.3)]]]
    answers = [{"question_id": str(n), "token_logprobs": its} for n, its in enumerate(logs, start=1)]
    return rows.table([{**ROW_IDS, "answers": answers}], schemas.ANSWERS)


def test_every_element_of_the_prompt_keeps_its_own_score() -> None:
    row = read_only_row(score(make_two_answers(), "gecko", GeckoConfig(nli=None), make_index()))
    assert (row["score"], row["n_questions"]) == (pytest.approx((0.75 + 0.25) / 2, rel=1e-6), 2)
    dog, cat = row["elements"]
    assert (dog["span"], dog["start"], dog["end"], dog["given"]) == ("dog", 2, 5, "yes")
    assert (cat["span"], cat["start"], cat["wanted"], cat["given"]) == ("cat", None, "yes", "no")
    assert [dog["score"], cat["score"]] == pytest.approx([0.75, 0.25], rel=1e-6)


def test_a_question_that_the_prompt_does_not_entail_has_no_score() -> None:
    row = read_only_row(score(make_two_answers(), "gecko", GeckoConfig(), make_index(0.001)))
    assert (row["score"], row["n_questions"]) == (pytest.approx(0.75, rel=1e-6), 1)
    assert [element["score"] is None for element in row["elements"]] == [False, True]


def make_colour_question(colour: str, *, keep: bool | None = None) -> WrittenQuestion:
    choices = ("red", "blue", "green")
    return WrittenQuestion("1", f"is the dog {colour}?", choices, colour, keep=keep)


def make_written_index(*questions: WrittenQuestion) -> WrittenIndex:
    table = rows.table([{"prompt_id": "p", **one._asdict()} for one in assign_ids(questions)], schemas.QUESTIONS)
    return WrittenIndex(table, None)


def make_answers_to(*questions: WrittenQuestion) -> pa.Table:
    """Return one image's answers, in which the first choice of every question has the highest probability."""
    logs = [[math.log(0.8)], [math.log(0.1)], [math.log(0.1)]]
    given = [
        {"question_id": one.question_id, "token_logprobs": logs, "chosen": one.choices[0]}
        for one in assign_ids(questions)
    ]
    return rows.table([{**ROW_IDS, "answers": given}], schemas.ANSWERS)


def make_failed_questions(kind: str) -> WrittenIndex:
    error = rows.error_to_dict(RowError(kind, "no form"))
    return WrittenIndex(rows.table([{"prompt_id": "p", "error": error}], schemas.QUESTIONS), None)


def add_foreign_entailment(question: WrittenQuestion) -> WrittenIndex:
    """Return the question, together with an entailment result that belongs to another question."""
    (one,) = assign_ids([question])
    found = [{"prompt_id": "p", "question_id": "another", "p_entail": 0.9}]
    asked = rows.table([{"prompt_id": "p", **one._asdict()}], schemas.QUESTIONS)
    return WrittenIndex(asked, rows.table(found, schemas.ENTAILMENTS))


RED_QUESTION, BLUE_QUESTION = make_colour_question("red"), make_colour_question("blue")
ASKED_QUESTIONS = [WrittenQuestion(str(n), f"{n}?", ("yes", "no"), "yes") for n in range(2)]
NO_MEMORY_ERROR = rows.error_to_dict(RowError("model_failed", "no memory", retryable=True))


@pytest.mark.parametrize(
    ("answers", "metric", "written", "kind"),
    [
        (make_two_answers(), GeckoConfig(threshold=0.95), make_index(0.01), "no_questions"),
        (make_two_answers(), GeckoConfig(), make_index(error=NO_MEMORY_ERROR), "model_failed"),
        (make_two_answers(), DsgConfig(), make_failed_questions("unreadable_reply"), "unreadable_reply"),
        (make_two_answers(), DsgConfig(), WrittenIndex(schemas.QUESTIONS.empty_table(), None), "incomplete_cell"),
        (make_answers_to(RED_QUESTION), GeckoConfig(nli=None), make_written_index(BLUE_QUESTION), "incomplete_cell"),
        (make_answers_to(RED_QUESTION), GeckoConfig(), add_foreign_entailment(RED_QUESTION), "incomplete_cell"),
        (make_answers_table(), tiny.make_vqascore(), None, "incomplete_cell"),
        *((make_answers_to(ASKED_QUESTIONS[0]), metric, make_written_index(*ASKED_QUESTIONS), "incomplete_cell")
          for metric in (GeckoConfig(nli=None), DsgConfig(), TifaConfig(), Vq2Config())),
    ],
    ids=["no question left", "entailment failed", "questions failed", "no questions", "answers to another writing",
         "no entailment", "no answer", "gecko lacks one", "dsg lacks one", "tifa lacks one", "vq2 lacks one"],
)  # fmt: skip
def test_missing_evidence_gives_a_null_with_the_reason_and_never_a_no(
    answers: pa.Table, metric: Any, written: WrittenIndex | None, kind: str
) -> None:
    row = read_only_row(score(answers, "m", metric, written))
    assert (row["score"], row["error"]["kind"]) == (None, kind)
    assert row["error"]["retryable"] == (kind in ("incomplete_cell", "model_failed"))


def test_answers_to_questions_that_are_no_longer_asked_do_not_matter() -> None:
    answers = make_answers_to(RED_QUESTION, BLUE_QUESTION._replace(question_id="2"))
    row = read_only_row(score(answers, "gecko", GeckoConfig(nli=None), make_written_index(RED_QUESTION)))
    assert (row["score"], row["n_questions"], row["error"]) == (pytest.approx(0.8, rel=1e-6), 1, None)


def test_a_question_that_the_filter_dropped_needs_no_answer() -> None:
    written = make_written_index(RED_QUESTION, make_colour_question("blue", keep=False)._replace(question_id="2"))
    row = read_only_row(score(make_answers_to(RED_QUESTION), "tifa", TifaConfig(), written))
    assert (row["score"], row["n_questions"], row["error"]) == (1.0, 1, None)
