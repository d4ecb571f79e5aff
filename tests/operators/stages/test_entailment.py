"""Every question keeps its row, with the probability that the prompt entails it, or an error."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from tests.operators.stages.given import compute_entailment


class ScriptedModel:
    """A model that returns the number of words of the hypothesis that occur in the premise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked += pairs
        if any("mouse" in hypothesis for _, hypothesis in pairs):
            raise RuntimeError("it squeaks")
        shares = [(set(premise.split()), hypothesis.rstrip(".").split()) for premise, hypothesis in pairs]
        return [sum(word in premise for word in words) / len(words) for premise, words in shares]


def make_questions(*texts: str) -> pa.Table:
    about = {"prompt_id": "p0", "prompt": "a red dog", "choices": ["yes", "no"], "answer": "yes"}
    return rows.table(
        [{**about, "question_id": str(n), "text": text} for n, text in enumerate(texts)], schemas.QUESTIONS
    )


def test_the_premise_is_the_prompt_and_the_hypothesis_the_answered_question() -> None:
    model = ScriptedModel()
    table = compute_entailment(make_questions("is there a dog?", "is there a horse?"), model)
    assert model.asked == [("a red dog", "There is a dog."), ("a red dog", "There is a horse.")]
    assert table.schema.equals(schemas.ENTAILMENTS)
    assert table.column("p_entail").to_pylist() == pytest.approx([0.5, 0.25])


def test_a_question_that_the_model_fails_on_keeps_its_row_with_its_error() -> None:
    table = compute_entailment(
        make_questions("is there a dog?", "is there a mouse?", "is there a cat?"), ScriptedModel()
    )
    assert [row["p_entail"] is None for row in table.to_pylist()] == [False, True, False]
    assert [row["error"] and row["error"]["kind"] for row in table.to_pylist()] == [None, "model_failed", None]


def test_the_error_of_a_prompt_without_questions_is_passed_on() -> None:
    error = rows.error_to_dict(RowError("unreadable_reply", "no"))
    failed = rows.table([{"prompt_id": "p1", "prompt": "a cat", "error": error}], schemas.QUESTIONS)
    model = ScriptedModel()
    (row,) = compute_entailment(failed, model).to_pylist()
    assert row["error"] == error and model.asked == []
