"""The scores stage: one number per image and metric, from its answers or its similarity."""

import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators import rows
from operators.errors import RowError
from operators.metrics.answered import Answered
from operators.metrics.clipscore import ClipScoreConfig, scale_cosine
from operators.metrics.configs import WritingConfig
from operators.metrics.reading import shown
from operators.metrics.vqascore import VqaScoreConfig, reduce_answer
from operators.metrics.writing import WrittenQuestion, is_asked

VERSION = 2


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
        records.append({**_ids(row), "metric": name, "error": row["error"], "basis": row["basis"], **columns})
    return rows.table(records, rows.ELEMENT_SCORES)


def _ids(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("image_id", "prompt_id", "generator")}


def _score_answers(row: Mapping[str, Any], metric: VqaScoreConfig) -> dict[str, Any]:
    """The mean over the questions of the first choice's likelihood; VQAScore has one question."""
    if not row["answers"]:
        return {"error": rows.error_value(_incomplete("answers", "lacks the answer to its prompt's question"))}
    likelihoods = [reduce_answer(answer["token_logprobs"][0], metric.asks.reduction) for answer in row["answers"]]
    return {"score": statistics.fmean(likelihoods), "n_questions": len(likelihoods), "truncated": False}


def _score_similarity(row: Mapping[str, Any], metric: ClipScoreConfig) -> dict[str, Any]:
    return {"score": scale_cosine(row["similarity"], metric.variant), "truncated": row["truncated"]}


class WrittenIndex:
    """The questions written about every prompt, with their probabilities of entailment where there are any."""

    def __init__(self, questions: pa.Table, entailments: pa.Table | None) -> None:
        self.questions: dict[str, list[WrittenQuestion]] = {}
        self.p_entail: dict[tuple[str, str], float] = {}
        self.errors: dict[str, RowError] = {}
        """Of the prompts whose questions, or their entailments, cannot be had."""
        self.bases = written_bases(questions, entailments)
        for row in self._sound(questions):
            self.questions.setdefault(row["prompt_id"], []).append(_written(row))
        if entailments is not None:
            for row in self._sound(entailments):
                self.p_entail[row["prompt_id"], row["question_id"]] = row["p_entail"]
            self._require_entailments()

    def _sound(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """The rows without an error; of the others the first error of each prompt is kept."""
        for row in table.to_pylist():
            error = rows.row_error(row["error"])
            if error is None:
                yield row
            else:
                self.errors.setdefault(row["prompt_id"], error)

    def _require_entailments(self) -> None:
        for prompt_id, written in self.questions.items():
            for question in written:
                if (prompt_id, question.question_id) not in self.p_entail:
                    self.errors.setdefault(prompt_id, _incomplete("entailment", f"lacks {_named(question)}"))

    def stands_under(self, answers: pa.Table) -> bool:
        """Whether answers (schema ANSWERS) are to these questions; of rows with an error that cannot be told."""
        asked = {
            prompt_id: rows.basis_of(*(one.question_id for one in written if is_asked(one.keep)))
            for prompt_id, written in self.questions.items()
        }
        sound = answers.filter(answers.column("error").is_null())
        held = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
        return all(asked.get(prompt_id) == basis for prompt_id, basis in held)

    def error_of(self, prompt_id: str, answered: Container[str]) -> RowError | None:
        """Why an image with answers to the questions of these ids has no score: all that are asked must be there.

        Answers to further questions do not matter.
        """
        if prompt_id in self.errors:
            return self.errors[prompt_id]
        if prompt_id not in self.questions:
            return _incomplete("answers", f"has prompt {prompt_id!r}, which has no questions")
        asked = (question for question in self.questions[prompt_id] if is_asked(question.keep))
        missing = (_incomplete("answers", f"lacks {_named(one)}") for one in asked if one.question_id not in answered)
        return next(missing, None)


def covers(entailments: pa.Table, questions: pa.Table) -> bool:
    """Whether every question (schema QUESTIONS) has its row of entailment, be it an error."""
    return _question_keys(questions) <= _question_keys(entailments)


def _question_keys(table: pa.Table) -> set[tuple[str, str | None]]:
    return set(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "question_id")), strict=True))


def written_bases(questions: pa.Table, entailments: pa.Table | None) -> dict[str, str]:
    """By prompt_id, what a score stands on besides the answers: the questions, and how likely each is entailed."""
    p_entail = _p_entail(entailments) if entailments is not None else {}
    parts: dict[str, list[str]] = {}
    columns = (questions.column(name).to_pylist() for name in ("prompt_id", "question_id", "parents", "keep"))
    for prompt_id, question_id, parents, keep in zip(*columns, strict=True):
        written = (question_id, parents, keep, p_entail.get((prompt_id, question_id)))
        parts.setdefault(prompt_id, []).append(repr(written))
    return {prompt_id: rows.basis_of(*of_prompt) for prompt_id, of_prompt in parts.items()}


def _p_entail(entailments: pa.Table) -> dict[tuple[str, str], float]:
    ids = zip(*(entailments.column(name).to_pylist() for name in ("prompt_id", "question_id")), strict=True)
    return dict(zip(ids, entailments.column("p_entail").to_pylist(), strict=True))


def _incomplete(stage: str, what: str) -> RowError:
    """The error of a row whose inputs do not fit each other: this stage's cell was computed from other questions."""
    message = f"the cell of {stage} {what}; run again; if it stays, delete the folder {stage}/ of the store"
    return RowError("incomplete_cell", message, retryable=True)


def _named(question: WrittenQuestion) -> str:
    return f"the question {shown(question.text)} ({question.question_id})"


def _written(row: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: row[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {"choices": tuple(row["choices"]), "parents": tuple(row["parents"] or ())})


def _score_elements(row: Mapping[str, Any], written: WrittenIndex, metric: WritingConfig) -> dict[str, Any]:
    answers = {answer["question_id"]: answer for answer in row["answers"]}
    error = written.error_of(row["prompt_id"], answers)
    if error is not None:
        return {"error": rows.error_value(error)}
    scored = metric.score(_answered(row["prompt_id"], answers, written))
    elements = [element._asdict() for element in scored.elements]
    columns = {"score": scored.score, "n_questions": scored.n_questions, "truncated": False, "elements": elements}
    return columns | {"error": rows.error_value(scored.error), "basis": written.bases[row["prompt_id"]]}


def _answered(prompt_id: str, answers: Mapping[str, Any], written: WrittenIndex) -> Sequence[Answered]:
    """Every question about the prompt, in the order written, with what the model answered where it was asked."""
    return [
        _join(question, answers.get(question.question_id, {}), written.p_entail.get((prompt_id, question.question_id)))
        for question in written.questions[prompt_id]
    ]


def _join(question: WrittenQuestion, answer: Mapping[str, Any], p_entail: float | None) -> Answered:
    logprobs = tuple(map(tuple, answer.get("token_logprobs") or ()))
    return Answered(question, logprobs, answer.get("reply"), answer.get("chosen"), p_entail)
