"""The scores stage: one number per image and metric, from what the metric's chain made of the image."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import Answered, Logprobs, Scored, incomplete, mean_over_images
from plumbline.operators.metrics.metric import Evidence, Metric
from plumbline.operators.metrics.modules import LookResult
from plumbline.operators.metrics.parsing import shown
from plumbline.operators.metrics.writing import WrittenQuestion, is_asked
from plumbline.operators.models.calls import Box
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, StaleInput, Upstream, remembered

STALE = "of questions that have been written anew since"


@runtime_checkable
class CombiningMetric(Protocol):
    """A metric that makes one score of those of a row's images in its own way; others take their mean."""

    def combined(self, images: Sequence[Scored]) -> Scored:
        """The score of the row."""


class PreparedScores(NamedTuple):
    """What one metric's scores of a shard follow from."""

    measured: pa.Table
    """A row for every image."""
    written: "WrittenIndex | None"
    """The questions of its prompts, where the metric scores by them."""


class ScoresStage(Stage):
    """What was measured of images to scores (schema ELEMENT_SCORES); an error passes on, with a null score."""

    name = "scores"
    version = 1
    schema = schemas.ELEMENT_SCORES
    over = "images"
    needs = Metric
    reads_rows = False

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return metric.scored_from

    @classmethod
    def recipe(cls, name: str, metric: Metric) -> dict[str, Any]:
        return {"name": name, "kind": metric.kind, **metric.scoring()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics: Mapping[str, Metric] = metrics
        self._written = remembered(_read_written)

    def prepare(self, inputs: Inputs) -> Mapping[str, PreparedScores]:
        return {name: self._read(self.metrics[name], inputs.upstream[name]) for name in inputs.metrics}

    def _read(self, metric: Metric, upstream: Mapping[str, Upstream]) -> PreparedScores:
        first, *_ = metric.scored_from
        measured = upstream[first].read()
        if "questions" not in upstream:
            return PreparedScores(measured, None)
        written: WrittenIndex = self._written(*map(upstream.get, ("questions", "entailment", "priors")))
        if not written.stands_under(measured):
            raise StaleInput(upstream[first].names[0], "answers to questions that have been written anew since")
        return PreparedScores(measured, written)

    def compute(self, prepared: Mapping[str, PreparedScores]) -> Mapping[str, pa.Table]:
        return {name: self._score(name, *tables) for name, tables in prepared.items()}

    def _score(self, name: str, measured: pa.Table, written: "WrittenIndex | None") -> pa.Table:
        records = []
        for row in measured.to_pylist():
            columns = {"error": row["error"], "basis": row["basis"]}
            if row["error"] is None:
                columns |= _scored(row, written, self.metrics[name])
            ids = {column: row[column] for column in ("image_id", "prompt_id", "generator")}
            records.append({**ids, "metric": name, **columns})
        return rows.table(records, schemas.ELEMENT_SCORES)


def _scored(row: Mapping[str, Any], written: "WrittenIndex | None", metric: Metric) -> dict[str, Any]:
    """The columns of a score; its basis where it stands on more than its row does."""
    combined = metric.combined if isinstance(metric, CombiningMetric) else mean_over_images
    if written is None:
        return _columns_of_asks(
            [[None if ask is None else metric.score(Evidence(ask)) for ask in image] for image in rows.per_ask(row)],
            combined,
        )
    error = written.error_of(row["prompt_id"], {answer["question_id"] for answer in row["answers"]})
    if error is not None:
        return {"error": rows.error_value(error)}
    images = [Evidence(image, _answered(image, written)) for image in rows.per_image(row)]
    scored = combined([metric.score(evidence) for evidence in images])
    return {**_columns(scored), "basis": written.bases[row["prompt_id"]]}


def _columns_of_asks(
    images: Sequence[Sequence[Scored | None]], combined: Callable[[Sequence[Scored]], Scored]
) -> dict[str, Any]:
    """The columns of a row whose images were scored by each ask of a judge; None where its reply could not be read.

    What was not read, or gave no score, is left out of an image's mean where others gave one; an ask has a score where
    all images have one by it.
    """
    columns = _columns(combined([mean_over_images(_with_scores(image), "Ask") for image in images]))
    if len(images[0]) == 1:
        return columns
    asks = ([ask for ask in each if ask is not None] for each in zip(*images, strict=True))
    return {**columns, "asks": [combined(each).score if len(each) == len(images) else None for each in asks]}


def _with_scores(asks: Sequence[Scored | None]) -> Sequence[Scored]:
    """Those that have a score; the first that has a reason where none has."""
    read = [ask for ask in asks if ask is not None]
    return [ask for ask in read if ask.error is None] or read[:1]


def _columns(scored: Scored) -> dict[str, Any]:
    elements = None if scored.elements is None else [element._asdict() for element in scored.elements]
    columns = {"score": scored.score, "n_questions": scored.n_questions, "truncated": scored.truncated}
    ratings = None if scored.ratings is None else [rating._asdict() for rating in scored.ratings]
    judged = {"ratings": ratings, "rationale": scored.rationale}
    return {**columns, **judged, "elements": elements, "error": rows.error_value(scored.error)}


def _read_written(questions: Upstream, entailment: Upstream | None, priors: Upstream | None) -> "WrittenIndex":
    """The questions of every prompt; raises StaleInput where the cell of an entailment or a prior is not of its
    questions.
    """
    asked = questions.read_each()
    entailed = None if entailment is None else entailment.read_each()
    if entailment is not None and entailed is not None:
        for name, of_questions, of_entailment in zip(entailment.names, asked, entailed, strict=True):
            if not covers(of_entailment, of_questions):
                raise StaleInput(name, STALE)
    index = WrittenIndex(_whole(questions, asked), None if entailment is None else _whole(entailment, entailed or ()))
    for name, prior in zip(priors.names, priors.read_each(), strict=True) if priors is not None else ():
        if not index.stands_under(prior):
            raise StaleInput(name, STALE)
        index.add_priors(prior)
    return index


def _whole(upstream: Upstream, tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([upstream.schema.empty_table(), *tables])


class WrittenIndex:
    """The questions written about every prompt, with their probabilities of entailment where there are any."""

    def __init__(self, questions: pa.Table, entailments: pa.Table | None) -> None:
        self.questions: dict[str, list[WrittenQuestion]] = {}
        self.p_entail: dict[tuple[str, str], float] = {}
        self.priors: dict[tuple[str, str], Logprobs] = {}
        """By prompt_id and question_id, the answers where there is nothing to see."""
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

    def add_priors(self, priors: pa.Table) -> None:
        """Takes a table of priors (schema PRIORS) to these questions."""
        for row in self._sound(priors):
            for answer in row["answers"]:
                self.priors[row["prompt_id"], answer["question_id"]] = _logprobs(answer)

    def _require_entailments(self) -> None:
        for prompt_id, written in self.questions.items():
            for question in written:
                if (prompt_id, question.question_id) not in self.p_entail:
                    self.errors.setdefault(prompt_id, incomplete("entailment", f"lacks {_named(question)}"))

    def stands_under(self, answers: pa.Table) -> bool:
        """Whether answers (schema ANSWERS) are to these questions; of rows with an error that cannot be told."""
        sound = answers.filter(answers.column("error").is_null())
        held = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
        return all(self._asked.get(prompt_id) == basis for prompt_id, basis in held)

    @cached_property
    def _asked(self) -> dict[str, str]:
        """By prompt_id, what answers to all that is asked stand on."""
        return {
            prompt_id: rows.basis_of(*(one.question_id for one in written if is_asked(one.keep)))
            for prompt_id, written in self.questions.items()
        }

    def error_of(self, prompt_id: str, answered: Container[str]) -> RowError | None:
        """Why an image with answers to the questions of these ids has no score: all that are asked must be there.

        Answers to further questions do not matter.
        """
        if prompt_id in self.errors:
            return self.errors[prompt_id]
        if prompt_id not in self.questions:
            return incomplete("answers", f"has prompt {prompt_id!r}, which has no questions")
        asked = (question for question in self.questions[prompt_id] if is_asked(question.keep))
        missing = (incomplete("answers", f"lacks {_named(one)}") for one in asked if one.question_id not in answered)
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


def _named(question: WrittenQuestion) -> str:
    return f"the question {shown(question.text)} ({question.question_id})"


def _written(row: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: row[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {"choices": tuple(row["choices"]), "parents": tuple(row["parents"] or ())})


def _answered(row: Mapping[str, Any], written: WrittenIndex) -> Sequence[Answered]:
    """Every question about the prompt, in the order written, with what the model answered where it was asked."""
    prompt_id, answers = row["prompt_id"], {answer["question_id"]: answer for answer in row["answers"]}
    return [
        _join(question, answers.get(question.question_id, {}), written, (prompt_id, question.question_id))
        for question in written.questions[prompt_id]
    ]


def _join(
    question: WrittenQuestion, answer: Mapping[str, Any], written: WrittenIndex, place: tuple[str, str]
) -> Answered:
    seen = tuple(map(_seen, answer.get("boxes") or (), answer.get("texts") or ()))
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


def _seen(boxes: Sequence[Mapping[str, Any]] | None, text: str | None) -> LookResult:
    return LookResult(tuple(Box(**box) for box in boxes or ()), text)
