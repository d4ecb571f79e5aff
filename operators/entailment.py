"""The entailment stage: the probability that a prompt entails each question written about it, with its answer."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError
from operators.metrics.gecko import hypothesis
from operators.models.calls import EntailmentModel

VERSION = 1


def entail(prompts: pa.Table, questions: pa.Table, model: EntailmentModel) -> pa.Table:
    """Questions (schema QUESTIONS) with their prompts to entailments (schema ENTAILMENTS), one row for one.

    The premise is the prompt, the hypothesis the question with its answer as a statement (gecko.txt, sec. 5,
    "Groundedness: removing hallucination"). No question is dropped here.
    """
    texts = dict(zip(prompts.column("prompt_id").to_pylist(), prompts.column("text").to_pylist(), strict=True))
    records = [_row(question) for question in questions.to_pylist()]
    asked = [row for row in records if row["error"] is None]
    for row, outcome in zip(asked, _probabilities(asked, texts, model), strict=True):
        if isinstance(outcome, RowError):
            row["error"] = rows.error_value(outcome)
        else:
            row["p_entail"] = outcome
    return rows.table(records, rows.ENTAILMENTS)


def _row(question: dict[str, Any]) -> dict[str, Any]:
    row = {name: question[name] for name in ("prompt_id", "question_id", "error")}
    if question["error"] is None:
        row["hypothesis"] = hypothesis(question["text"], question["answer"])
    return row


def _probabilities(
    asked: Sequence[dict[str, Any]], texts: dict[str, str], model: EntailmentModel
) -> list[float | RowError]:
    return isolate(model.entailment, [(texts[row["prompt_id"]], row["hypothesis"]) for row in asked])
