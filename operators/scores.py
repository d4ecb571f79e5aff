"""The scores stage: one number per image and metric, from its answers or its similarity."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators import rows
from operators.errors import RowError
from operators.metrics.answered import Answered
from operators.metrics.clipscore import ClipScoreConfig, scale_cosine
from operators.metrics.configs import WritingConfig
from operators.metrics.vqascore import VqaScoreConfig, reduce_answer
from operators.metrics.writing import WrittenQuestion

VERSION = 1


def score(cell: pa.Table, name: str, metric: VqaScoreConfig | ClipScoreConfig) -> pa.Table:
    """Answers or similarities of one shard to scores (schema ELEMENT_SCORES); an error passes on, with a null score."""
    scored = _score_answers if isinstance(metric, VqaScoreConfig) else _score_similarity
    return _table(cell, name, lambda row: scored(row, metric))  # type: ignore[arg-type]


def score_elements(cell: pa.Table, written: "WrittenIndex", name: str, metric: WritingConfig) -> pa.Table:
    """Answers of one shard to scores (schema ELEMENT_SCORES) by the questions that were written about its prompts."""
    return _table(cell, name, lambda row: _score_elements(row, written, metric))


def _table(cell: pa.Table, name: str, scored: Any) -> pa.Table:
    records = []
    for row in cell.to_pylist():
        columns = {} if row["error"] is not None else scored(row)
        records.append({**_ids(row), "metric": name, "error": row["error"], **columns})
    return rows.table(records, rows.ELEMENT_SCORES)


def _ids(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("image_id", "prompt_id", "generator")}


def _score_answers(row: Mapping[str, Any], metric: VqaScoreConfig) -> dict[str, Any]:
    """The mean over the questions of the first choice's likelihood; VQAScore has one question."""
    likelihoods = [reduce_answer(answer["token_logprobs"][0], metric.reduction) for answer in row["answers"]]
    return {"score": statistics.fmean(likelihoods), "n_questions": len(likelihoods), "truncated": False}


def _score_similarity(row: Mapping[str, Any], metric: ClipScoreConfig) -> dict[str, Any]:
    return {"score": scale_cosine(row["similarity"], metric.variant), "truncated": row["truncated"]}


class WrittenIndex:
    """The questions written about every prompt, with their probabilities of entailment where there are any."""

    def __init__(self, questions: pa.Table, entailments: pa.Table | None) -> None:
        self.questions: dict[str, list[WrittenQuestion]] = defaultdict(list)
        for row in questions.to_pylist():
            if row["error"] is None:
                self.questions[row["prompt_id"]].append(_written(row))
        self.p_entail: dict[tuple[str, str], float] = {}
        self.errors: dict[str, RowError] = {}
        for row in entailments.to_pylist() if entailments is not None else ():
            error = rows.row_error(row["error"])
            if error is not None:
                self.errors[row["prompt_id"]] = error
            else:
                self.p_entail[row["prompt_id"], row["question_id"]] = row["p_entail"]


def _written(row: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: row[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {"choices": tuple(row["choices"]), "parents": tuple(row["parents"] or ())})


def _score_elements(row: Mapping[str, Any], written: WrittenIndex, metric: WritingConfig) -> dict[str, Any]:
    prompt_id = row["prompt_id"]
    if prompt_id in written.errors:
        return {"error": rows.error_value(written.errors[prompt_id])}
    scored = metric.score(_answered(row, written))
    elements = [element._asdict() for element in scored.elements]
    columns = {"score": scored.score, "n_questions": scored.n_questions, "truncated": False, "elements": elements}
    return columns | {"error": rows.error_value(scored.error)}


def _answered(row: Mapping[str, Any], written: WrittenIndex) -> Sequence[Answered]:
    """Every question about the row's prompt, in the order written, with what the model answered."""
    given = {answer["question_id"]: answer for answer in row["answers"]}
    return [
        Answered(
            question,
            tuple(map(tuple, (answer := given.get(question.question_id, {})).get("token_logprobs") or ())),
            answer.get("reply"),
            answer.get("chosen"),
            written.p_entail.get((row["prompt_id"], question.question_id)),
        )
        for question in written.questions[row["prompt_id"]]
    ]
