"""The scores stage, which computes one number per image and metric from the tables of the metric's chain."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import (
    Answered,
    Evidence,
    Logprobs,
    Metric,
    Scored,
    average_images,
    make_incomplete_cell_error,
)
from plumbline.operators.metrics.modules import QueryResult
from plumbline.operators.metrics.parsing import shorten
from plumbline.operators.metrics.writing import WrittenQuestion, is_asked
from plumbline.operators.models.calls import Box
from plumbline.operators.stages.stage import (
    Inputs,
    Stage,
    StageOptions,
    StaleInputError,
    UpstreamTables,
    cache_upstream,
)

STALE_QUESTIONS_REASON = "the questions that it was computed from have been rewritten"


@runtime_checkable
class ImageCombiningMetric(Protocol):
    """Protocol for metrics with their own way of combining the scores of a row's images; other metrics use the mean."""

    def combine_images(self, images: Sequence[Scored]) -> Scored:
        """Return the score of a row with several images, given the score of each image."""


class PreparedScores(NamedTuple):
    """The tables from which one metric's scores for a shard are computed."""

    measured: pa.Table
    """Table with a row for each image."""
    written: "WrittenIndex | None"
    """The prompts' questions, if the metric has any."""


class ScoresStage(Stage):
    """Stage that turns tables about images into scores (schema ELEMENT_SCORES).

    A row with an error gets a null score and the same error.
    """

    name = "scores"
    version = 1
    schema = schemas.ELEMENT_SCORES
    row_kind = "images"
    metric_type = Metric

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return metric.scored_from

    @classmethod
    def recipe(cls, name: str, metric: Metric) -> dict[str, Any]:
        return {"name": name, "kind": metric.kind, **metric.list_score_options()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics: Mapping[str, Metric] = metrics
        self._written = cache_upstream(_index_questions)

    def prepare(self, inputs: Inputs) -> Mapping[str, PreparedScores]:
        prepared = {}
        for name in inputs.metrics:
            upstream = inputs.upstream[name]
            first = upstream[self.metrics[name].scored_from[0]]
            measured = first.read()
            written: WrittenIndex | None = None
            if "questions" in upstream:
                written = self._written(*map(upstream.get, ("questions", "entailment", "priors")))
                if not written.matches(measured):
                    raise StaleInputError(first.names[0], "the questions that it answers have been rewritten")
            prepared[name] = PreparedScores(measured, written)
        return prepared

    def compute(self, prepared: Mapping[str, PreparedScores]) -> Mapping[str, pa.Table]:
        tables = {}
        for name, (measured, written) in prepared.items():
            records = []
            for row in measured.to_pylist():
                columns = {"error": row["error"], "basis": row["basis"]}
                if row["error"] is None:
                    columns |= _score_row(row, written, self.metrics[name])
                ids = {column: row[column] for column in ("image_id", "prompt_id", "generator")}
                records.append({**ids, "metric": name, **columns})
            tables[name] = rows.table(records, schemas.ELEMENT_SCORES)
        return tables


def _score_row(row: Mapping[str, Any], written: "WrittenIndex | None", metric: Metric) -> dict[str, Any]:
    """Return one row's score and details by column; `basis` is set only if the score also depends on questions."""
    combine = metric.combine_images if isinstance(metric, ImageCombiningMetric) else average_images
    if written is None:
        return _score_calls(row, metric, combine)
    error = written.find_error(row["prompt_id"], {answer["question_id"] for answer in row["answers"]})
    if error is not None:
        return {"error": rows.error_to_dict(error)}
    images = [Evidence(image, _join_answers(image, written)) for image in rows.split_by_image(row)]
    scored = combine([metric.score(evidence) for evidence in images])
    return {**_make_score_columns(scored), "basis": written.bases[row["prompt_id"]]}


def _score_calls(
    row: Mapping[str, Any], metric: Metric, combine: Callable[[Sequence[Scored]], Scored]
) -> dict[str, Any]:
    """Return the score and details of a row without questions, keyed by column.

    A judge may have been called several times. Unreadable replies and replies without a score are left out of an
    image's mean if other replies have a score. The score of a call in `asks` is None if a reply in it is unreadable.
    """
    images, means = [], []
    for calls in rows.split_by_call(row):
        scored = [None if call is None else metric.score(Evidence(call)) for call in calls]
        images.append(scored)
        read = [one for one in scored if one is not None]
        means.append(average_images([one for one in read if one.error is None] or read[:1], "Ask"))
    columns = _make_score_columns(combine(means))
    if len(images[0]) == 1:
        return columns
    by_call = ([one for one in each if one is not None] for each in zip(*images, strict=True))
    return {**columns, "asks": [combine(each).score if len(each) == len(images) else None for each in by_call]}


def _make_score_columns(scored: Scored) -> dict[str, Any]:
    return {
        "score": scored.score,
        "n_questions": scored.n_questions,
        "truncated": scored.truncated,
        "ratings": None if scored.ratings is None else [rating._asdict() for rating in scored.ratings],
        "rationale": scored.rationale,
        "elements": None if scored.elements is None else [element._asdict() for element in scored.elements],
        "error": rows.error_to_dict(scored.error),
    }


def _index_questions(
    questions: UpstreamTables, entailment: UpstreamTables | None, priors: UpstreamTables | None
) -> "WrittenIndex":
    """Return the questions of all prompts, with their entailment probabilities and priors, if there are any.

    Raise StaleInputError if a cell with entailments or priors was computed from other questions.
    """
    asked, entailments = questions.read_each(), None
    if entailment is not None:
        entailed = entailment.read_each()
        for name, of_questions, of_entailment in zip(entailment.names, asked, entailed, strict=True):
            if not _list_question_keys(of_questions) <= _list_question_keys(of_entailment):
                raise StaleInputError(name, STALE_QUESTIONS_REASON)
        entailments = pa.concat_tables([entailment.schema.empty_table(), *entailed])
    index = WrittenIndex(pa.concat_tables([questions.schema.empty_table(), *asked]), entailments)
    for name, prior in zip(priors.names, priors.read_each(), strict=True) if priors is not None else ():
        if not index.matches(prior):
            raise StaleInputError(name, STALE_QUESTIONS_REASON)
        index.add_priors(prior)
    return index


def _list_question_keys(table: pa.Table) -> set[tuple[str, str | None]]:
    return set(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "question_id")), strict=True))


class WrittenIndex:
    """The questions of all prompts, with their entailment probabilities if these were computed."""

    def __init__(self, questions: pa.Table, entailments: pa.Table | None) -> None:
        self.questions: dict[str, list[WrittenQuestion]] = {}
        self.p_entail: dict[tuple[str, str], float] = {}
        self.priors: dict[tuple[str, str], Logprobs] = {}
        """Answers about a blank image, by prompt_id and question_id."""
        self.errors: dict[str, RowError] = {}
        """Errors of prompts whose questions or entailments failed, by prompt_id."""
        self.bases = digest_score_inputs(questions, entailments)
        for row in self._iterate_valid_rows(questions):
            fields = {name: row[name] for name in WrittenQuestion._fields}
            fields |= {"choices": tuple(row["choices"]), "parents": tuple(row["parents"] or ())}
            self.questions.setdefault(row["prompt_id"], []).append(WrittenQuestion(**fields))
        if entailments is not None:
            for row in self._iterate_valid_rows(entailments):
                self.p_entail[row["prompt_id"], row["question_id"]] = row["p_entail"]
            for prompt_id, written in self.questions.items():
                for question in written:
                    if (prompt_id, question.question_id) not in self.p_entail:
                        self.errors.setdefault(
                            prompt_id, make_incomplete_cell_error("entailment", f"lacks {_describe_question(question)}")
                        )

    def _iterate_valid_rows(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield the rows without an error; record the first error of each prompt."""
        for row in table.to_pylist():
            error = rows.read_row_error(row["error"])
            if error is None:
                yield row
            else:
                self.errors.setdefault(row["prompt_id"], error)

    def add_priors(self, priors: pa.Table) -> None:
        """Add the answers about a grey image (schema PRIORS) to the questions of their prompts."""
        for row in self._iterate_valid_rows(priors):
            for answer in row["answers"]:
                self.priors[row["prompt_id"], answer["question_id"]] = _read_logprobs(answer)

    def matches(self, answers: pa.Table) -> bool:
        """Return True if the answers (schema ANSWERS) were given to these questions; rows with an error are ignored."""
        sound = answers.filter(answers.column("error").is_null())
        pairs = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
        return all(self._question_digests.get(prompt_id) == basis for prompt_id, basis in pairs)

    @cached_property
    def _question_digests(self) -> dict[str, str]:
        """Digest of the questions asked about each prompt, by prompt_id, as in the `basis` column of answers."""
        return {
            prompt_id: rows.digest_inputs(*(one.question_id for one in written if is_asked(one.keep)))
            for prompt_id, written in self.questions.items()
        }

    def find_error(self, prompt_id: str, answered: Container[str]) -> RowError | None:
        """Return an error if the prompt has one, or if an image lacks the answer to an asked question; else None.

        `answered` contains the ids of the answered questions. Answers to other questions are ignored.
        """
        if prompt_id in self.errors:
            return self.errors[prompt_id]
        if prompt_id not in self.questions:
            return make_incomplete_cell_error("answers", f"has prompt {prompt_id!r}, which has no questions")
        for question in self.questions[prompt_id]:
            if is_asked(question.keep) and question.question_id not in answered:
                return make_incomplete_cell_error("answers", f"lacks {_describe_question(question)}")
        return None


def digest_score_inputs(questions: pa.Table, entailments: pa.Table | None) -> dict[str, str]:
    """Map each prompt_id to a digest of the questions and entailments that determine the prompt's scores."""
    p_entail: dict[tuple[str, str], float] = {}
    if entailments is not None:
        names, questions_of, likely = (
            entailments.column(name).to_pylist() for name in ("prompt_id", "question_id", "p_entail")
        )
        p_entail = dict(zip(zip(names, questions_of, strict=True), likely, strict=True))
    parts: dict[str, list[str]] = {}
    columns = (questions.column(name).to_pylist() for name in ("prompt_id", "question_id", "parents", "keep"))
    for prompt_id, question_id, parents, keep in zip(*columns, strict=True):
        written = (question_id, parents, keep, p_entail.get((prompt_id, question_id)))
        parts.setdefault(prompt_id, []).append(repr(written))
    return {prompt_id: rows.digest_inputs(*written) for prompt_id, written in parts.items()}


def _describe_question(question: WrittenQuestion) -> str:
    return f"the question {shorten(question.text)} ({question.question_id})"


def _join_answers(row: Mapping[str, Any], written: WrittenIndex) -> Sequence[Answered]:
    """Return the prompt's questions in the order they were written, each with the model's answer if there is one."""
    answers = {answer["question_id"]: answer for answer in row["answers"]}
    answered = []
    for question in written.questions[row["prompt_id"]]:
        answer = answers.get(question.question_id, {})
        key = row["prompt_id"], question.question_id
        queries = zip(answer.get("boxes") or (), answer.get("texts") or (), strict=False)
        answered.append(
            Answered(
                question,
                token_logprobs=_read_logprobs(answer),
                reply=answer.get("reply"),
                chosen=answer.get("chosen"),
                p_entail=written.p_entail.get(key),
                query_results=tuple(
                    QueryResult(tuple(Box(**box) for box in boxes or ()), text) for boxes, text in queries
                ),
                prior=written.priors.get(key, ()),
            )
        )
    return answered


def _read_logprobs(answer: Mapping[str, Any]) -> Logprobs:
    return tuple(map(tuple, answer.get("token_logprobs") or ()))
