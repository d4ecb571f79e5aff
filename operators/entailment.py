"""The entailment stage: the probability that a prompt entails each question written about it, with its answer."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError
from operators.metrics.gecko import hypothesis
from operators.models.calls import EntailmentModel

VERSION = 1


def entail(questions: pa.Table, model: EntailmentModel) -> pa.Table:
    """Questions (schema QUESTIONS) to entailments (schema ENTAILMENTS), one row for one.

    The premise is the prompt, the hypothesis the question with its answer as a statement (gecko.txt, sec. 5,
    "Groundedness: removing hallucination"). No question is dropped here.
    """
    written = questions.to_pylist()
    pairs = [_pair(question) for question in written if question["error"] is None]
    outcomes = iter(isolate(model.entailment, pairs))
    records = [_row(question, next(outcomes) if question["error"] is None else None) for question in written]
    return rows.table(records, rows.ENTAILMENTS)


def _pair(question: Mapping[str, Any]) -> tuple[str, str]:
    """Premise and hypothesis."""
    return question["prompt"], hypothesis(question["text"], question["answer"])


def _row(question: Mapping[str, Any], outcome: float | RowError | None) -> dict[str, Any]:
    row = {name: question[name] for name in ("prompt_id", "question_id", "error")}
    if isinstance(outcome, RowError):
        return {**row, "hypothesis": _pair(question)[1], "error": rows.error_value(outcome)}
    return row if outcome is None else {**row, "hypothesis": _pair(question)[1], "p_entail": outcome}
