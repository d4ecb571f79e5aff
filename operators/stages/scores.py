"""The scores stage: one number per image and metric, from the tables of the metric's chain."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import Answered, Logprobs, Scored, incomplete, mean_over_images
from plumbline.operators.metrics.metric import Evidence, Metric
from plumbline.operators.metrics.modules import LookResult
from plumbline.operators.metrics.parsing import shorten
from plumbline.operators.metrics.writing import WrittenQuestion, is_asked
from plumbline.operators.models.calls import Box
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, StaleInput, Upstream, cache_upstream

STALE = "of questions that have been rewritten since"


@runtime_checkable
class CombiningMetric(Protocol):
    """A metric with its own way to combine the scores of a row's images; others take the mean."""

    def combined(self, images: Sequence[Scored]) -> Scored:
        """Return the score of the row."""


class PreparedScores(NamedTuple):
    """Tables behind one metric's scores of a shard."""

    measured: pa.Table
    """A row for each image."""
    written: "WrittenIndex | None"
    """Questions of its prompts, if the metric scores by questions."""


class ScoresStage(Stage):
    """Tables about images to scores (schema ELEMENT_SCORES). An error is passed on with a null score."""

    name = "scores"
    version = 1
    schema = schemas.ELEMENT_SCORES
    over = "images"
    needs = Metric

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return metric.scored_from

    @classmethod
    def recipe(cls, name: str, metric: Metric) -> dict[str, Any]:
        return {"name": name, "kind": metric.kind, **metric.scoring()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics: Mapping[str, Metric] = metrics
        self._written = cache_upstream(_read_written)

    def prepare(self, inputs: Inputs) -> Mapping[str, PreparedScores]:
        return {name: self._read(self.metrics[name], inputs.upstream[name]) for name in inputs.metrics}

    def _read(self, metric: Metric, upstream: Mapping[str, Upstream]) -> PreparedScores:
        first, *_ = metric.scored_from
        measured = upstream[first].read()
        if "questions" not in upstream:
            return PreparedScores(measured, None)
        written: WrittenIndex = self._written(*map(upstream.get, ("questions", "entailment", "priors")))
        if not written.matches(measured):
            raise StaleInput(upstream[first].names[0], "answers to questions that have been rewritten since")
        return PreparedScores(measured, written)

    def compute(self, prepared: Mapping[str, PreparedScores]) -> Mapping[str, pa.Table]:
        return {name: self._score(name, *tables) for name, tables in prepared.items()}

    def _score(self, name: str, measured: pa.Table, written: "WrittenIndex | None") -> pa.Table:
        records = []
        for row in measured.to_pylist():
            columns = {"error": row["error"], "basis": row["basis"]}
            if row["error"] is None:
                columns |= _score_row(row, written, self.metrics[name])
            ids = {column: row[column] for column in ("image_id", "prompt_id", "generator")}
            records.append({**ids, "metric": name, **columns})
        return rows.table(records, schemas.ELEMENT_SCORES)


def _score_row(row: Mapping[str, Any], written: "WrittenIndex | None", metric: Metric) -> dict[str, Any]:
    """Return the columns of a score, with a basis if the score depends on more than its row."""
    combined = metric.combined if isinstance(metric, CombiningMetric) else mean_over_images
    if written is None:
        return _columns_of_asks(
            [
                [None if ask is None else metric.score(Evidence(ask)) for ask in image]
                for image in rows.split_by_call(row)
            ],
            combined,
        )
    error = written.find_error(row["prompt_id"], {answer["question_id"] for answer in row["answers"]})
    if error is not None:
        return {"error": rows.error_value(error)}
    images = [Evidence(image, _answered_questions(image, written)) for image in rows.split_by_image(row)]
    scored = combined([metric.score(evidence) for evidence in images])
    return {**_columns(scored), "basis": written.bases[row["prompt_id"]]}


def _columns_of_asks(
    images: Sequence[Sequence[Scored | None]], combined: Callable[[Sequence[Scored]], Scored]
) -> dict[str, Any]:
    """Return the columns of a row that a judge was asked about several times; None for each unreadable reply.

    Unreadable replies and replies without a score are left out of an image's mean if others have one. An ask has a
    score if it has one for all images.
    """
    columns = _columns(combined([mean_over_images(_select_scored(image), "Ask") for image in images]))
    if len(images[0]) == 1:
        return columns
    asks = ([ask for ask in each if ask is not None] for each in zip(*images, strict=True))
    return {**columns, "asks": [combined(each).score if len(each) == len(images) else None for each in asks]}


def _select_scored(asks: Sequence[Scored | None]) -> Sequence[Scored]:
    """Return the asks with a score; the first ask with an error if none has one."""
    read = [ask for ask in asks if ask is not None]
    return [ask for ask in read if ask.error is None] or read[:1]


def _columns(scored: Scored) -> dict[str, Any]:
    elements = None if scored.elements is None else [element._asdict() for element in scored.elements]
    columns = {"score": scored.score, "n_questions": scored.n_questions, "truncated": scored.truncated}
    ratings = None if scored.ratings is None else [rating._asdict() for rating in scored.ratings]
    judged = {"ratings": ratings, "rationale": scored.rationale}
    return {**columns, **judged, "elements": elements, "error": rows.error_value(scored.error)}


def _read_written(questions: Upstream, entailment: Upstream | None, priors: Upstream | None) -> "WrittenIndex":
    """Return the questions of every prompt.

    Raises StaleInput if a cell of entailment or priors was computed from other questions.
    """
    asked = questions.read_each()
    entailed = None if entailment is None else entailment.read_each()
    if entailment is not None and entailed is not None:
        for name, of_questions, of_entailment in zip(entailment.names, asked, entailed, strict=True):
            if not covers(of_entailment, of_questions):
                raise StaleInput(name, STALE)
    index = WrittenIndex(_concat(questions, asked), None if entailment is None else _concat(entailment, entailed or ()))
    for name, prior in zip(priors.names, priors.read_each(), strict=True) if priors is not None else ():
        if not index.matches(prior):
            raise StaleInput(name, STALE)
        index.add_priors(prior)
    return index


def _concat(upstream: Upstream, tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([upstream.schema.empty_table(), *tables])


class WrittenIndex:
    """The questions about every prompt, with their probabilities of entailment if there are any."""

    def __init__(self, questions: pa.Table, entailments: pa.Table | None) -> None:
        self.questions: dict[str, list[WrittenQuestion]] = {}
        self.p_entail: dict[tuple[str, str], float] = {}
        self.priors: dict[tuple[str, str], Logprobs] = {}
        """Answers about a blank image by prompt_id and question_id."""
        self.errors: dict[str, RowError] = {}
        """Errors of prompts whose questions or entailments failed, by prompt_id."""
        self.bases = score_bases(questions, entailments)
        for row in self._sound_rows(questions):
            self.questions.setdefault(row["prompt_id"], []).append(_read_question(row))
        if entailments is not None:
            for row in self._sound_rows(entailments):
                self.p_entail[row["prompt_id"], row["question_id"]] = row["p_entail"]
            self._require_entailments()

    def _sound_rows(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield the rows without an error; record the first error of each prompt."""
        for row in table.to_pylist():
            error = rows.row_error(row["error"])
            if error is None:
                yield row
            else:
                self.errors.setdefault(row["prompt_id"], error)

    def add_priors(self, priors: pa.Table) -> None:
        """Add a table of priors (schema PRIORS) to these questions."""
        for row in self._sound_rows(priors):
            for answer in row["answers"]:
                self.priors[row["prompt_id"], answer["question_id"]] = _logprobs(answer)

    def _require_entailments(self) -> None:
        for prompt_id, written in self.questions.items():
            for question in written:
                if (prompt_id, question.question_id) not in self.p_entail:
                    self.errors.setdefault(prompt_id, incomplete("entailment", f"lacks {_describe(question)}"))

    def matches(self, answers: pa.Table) -> bool:
        """Return True if the answers (schema ANSWERS) are to these questions; rows with an error are ignored."""
        sound = answers.filter(answers.column("error").is_null())
        pairs = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
        return all(self._answered_bases.get(prompt_id) == basis for prompt_id, basis in pairs)

    @cached_property
    def _answered_bases(self) -> dict[str, str]:
        return {
            prompt_id: rows.input_digest(*(one.question_id for one in written if is_asked(one.keep)))
            for prompt_id, written in self.questions.items()
        }

    def find_error(self, prompt_id: str, answered: Container[str]) -> RowError | None:
        """Return why an image with answers to these question ids has no score: an asked question lacks its answer.

        Answers to further questions do not matter.
        """
        if prompt_id in self.errors:
            return self.errors[prompt_id]
        if prompt_id not in self.questions:
            return incomplete("answers", f"has prompt {prompt_id!r}, which has no questions")
        asked = (question for question in self.questions[prompt_id] if is_asked(question.keep))
        missing = (incomplete("answers", f"lacks {_describe(one)}") for one in asked if one.question_id not in answered)
        return next(missing, None)


def covers(entailments: pa.Table, questions: pa.Table) -> bool:
    """Return True if every question (schema QUESTIONS) has a row of entailment, possibly with an error."""
    return _question_keys(questions) <= _question_keys(entailments)


def _question_keys(table: pa.Table) -> set[tuple[str, str | None]]:
    return set(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "question_id")), strict=True))


def score_bases(questions: pa.Table, entailments: pa.Table | None) -> dict[str, str]:
    """Return by prompt_id the digest of the questions and entailment that scores depend on."""
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
    return {prompt_id: rows.input_digest(*written) for prompt_id, written in parts.items()}


def _describe(question: WrittenQuestion) -> str:
    return f"the question {shorten(question.text)} ({question.question_id})"


def _read_question(row: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: row[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {"choices": tuple(row["choices"]), "parents": tuple(row["parents"] or ())})


def _answered_questions(row: Mapping[str, Any], written: WrittenIndex) -> Sequence[Answered]:
    """Return every question about the prompt in the order written, with the model's answer if it was asked."""
    prompt_id, answers = row["prompt_id"], {answer["question_id"]: answer for answer in row["answers"]}
    return [
        _join(question, answers.get(question.question_id, {}), written, (prompt_id, question.question_id))
        for question in written.questions[prompt_id]
    ]


def _join(
    question: WrittenQuestion, answer: Mapping[str, Any], written: WrittenIndex, place: tuple[str, str]
) -> Answered:
    seen = tuple(
        LookResult(tuple(Box(**box) for box in boxes or ()), text)
        for boxes, text in zip(answer.get("boxes") or (), answer.get("texts") or (), strict=False)
    )
    return Answered(
        question,
        _logprobs(answer),
        answer.get("reply"),
        answer.get("chosen"),
        written.p_entail.get(place),
        seen,
        written.priors.get(place, ()),
    )


def _logprobs(answer: Mapping[str, Any]) -> Logprobs:
    return tuple(map(tuple, answer.get("token_logprobs") or ()))
