"""The questions stage, which writes questions about each prompt, from a template or with a language model."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, check_prompt
from plumbline.operators.metrics.metric import Metric, PackedMetric, TextInImageMetric, takes_questions
from plumbline.operators.metrics.writing import Writing, WrittenQuestion, assign_ids
from plumbline.operators.models.calls import GenerateModel
from plumbline.operators.stages.programs import generate, run_programs
from plumbline.operators.stages.question_pack import (
    PackIndex,
    make_question_rows,
    make_text_questions,
    read_prompts,
    select_questions,
)
from plumbline.operators.stages.stage import BenchmarkPart, Inputs, RowStage, StageOptions, cache_upstream

WrittenRows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows (schema QUESTIONS) by the prompt's text."""


@runtime_checkable
class QuestionMetric(Protocol):
    """Protocol for metrics with questions, which are written by a model, shipped by a benchmark or made from texts."""

    def list_question_options(self) -> dict[str, Any]:
        """Return all options that determine the questions, except the writer and the pack's content."""


class QuestionWritingMetric(QuestionMetric, Protocol):
    """Protocol for metrics that write their questions, with or without a model."""

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]] | Writing[list[WrittenQuestion] | RowError]:
        """Request the questions about a prompt and return them; a metric that makes no requests needs no model.

        Raise UnreadableReply if the reply contains no questions. Return an error if the prompt cannot have questions.
        """


class PreparedPrompts(NamedTuple):
    """A shard's prompts, and the questions that are already known for the texts of these prompts."""

    prompts: pa.Table
    written: Mapping[str, WrittenRows]
    """Known questions by metric. No new questions are written about their texts."""
    pack: PackIndex | None = None
    """Questions shipped by the benchmark or sent with images; None if the prompts get an error."""


class QuestionsStage(RowStage):
    """Stage that writes questions (schema QUESTIONS) about prompts (schema PROMPTS), once per distinct text."""

    name = "questions"
    version = 1
    schema = schemas.QUESTIONS
    call_unit = "writer"
    row_kind = "prompts"
    metric_type = QuestionMetric
    calls: ClassVar = {"writer": "generate"}
    optional_calls = frozenset({"writer"})
    keeps_rows = True
    side_by_side = True

    @classmethod
    def list_benchmark_parts(cls, metric: Metric) -> tuple[BenchmarkPart, ...]:
        return ("pack",) if takes_questions(metric) else ()

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"kind": metric.kind, **metric.list_question_options()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.model: GenerateModel | None = models.get("writer")
        self._pack = cache_upstream(lambda pack: PackIndex(pack.read()))

    def prepare(self, inputs: Inputs) -> PreparedPrompts:
        kept = {name: select_reusable_questions(inputs.earlier.get(name, ())) for name in inputs.metrics}
        asks = inputs.pack is not None and any(takes_questions(self.metrics[name]) for name in inputs.metrics)
        pack = self._pack(inputs.pack) if asks else PackIndex(schemas.QUESTIONS.empty_table())
        return PreparedPrompts(inputs.rows, kept, pack)

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedPrompts:
        refused = {
            text or "": [{"error": rows.error_to_dict(error)}] for text in inputs.rows.column("text").to_pylist()
        }
        return PreparedPrompts(inputs.rows, dict.fromkeys(inputs.metrics, refused))

    def compute(self, prepared: PreparedPrompts) -> Mapping[str, pa.Table]:
        """Return each metric's table; questions of all metrics are requested together, to fill the model's batches."""
        with ThreadPoolExecutor(len(prepared.written)) as pool:
            tables = pool.map(partial(self._make_table, prepared), prepared.written)
            return dict(zip(prepared.written, tables, strict=True))

    def _make_table(self, prepared: PreparedPrompts, name: str) -> pa.Table:
        metric, pack = self.metrics[name], prepared.pack
        if pack is not None and isinstance(metric, TextInImageMetric):
            return make_text_questions(prepared.prompts, pack, metric)
        if pack is not None and isinstance(metric, PackedMetric):
            return select_questions(prepared.prompts, pack, metric)
        return write_questions(prepared.prompts, metric, self.model, prepared.written[name])


def write_questions(
    prompts: pa.Table, metric: QuestionWritingMetric, model: GenerateModel | None, kept: WrittenRows | None = None
) -> pa.Table:
    """Return questions (schema QUESTIONS) about prompts (schema PROMPTS), reusing the questions in `kept`."""
    kept = kept or {}
    asked = list(read_prompts(prompts))
    new = [text for text in dict.fromkeys(text for _, text in asked) if text not in kept]
    ran = run_programs([_request_questions(text, metric) for text in new], partial(generate, model))
    written = {**kept, **dict(zip(new, map(make_question_rows, ran.results), strict=True))}
    records = [{**row, "prompt_id": prompt_id, "prompt": text} for prompt_id, text in asked for row in written[text]]
    table = rows.attach_usage(rows.table(records, schemas.QUESTIONS), ran.usage)
    return rows.attach_kept_count(table, sum(record["prompt"] in kept for record in records))


def _request_questions(text: str, metric: QuestionWritingMetric) -> Writing[Sequence[WrittenQuestion] | RowError]:
    """Ask the metric's language model for a prompt's questions; return them or an error.

    It is an error if the prompt is unusable, or if the model writes no questions.
    """
    if (problem := check_prompt(text)) is not None:
        return problem
    written = yield from metric.write(text)
    if isinstance(written, RowError):
        return written
    return assign_ids(written) or RowError("unreadable_reply", "the model wrote no question about the prompt")


def select_reusable_questions(earlier: Sequence[pa.Table]) -> WrittenRows:
    """Return the rows of earlier tables (newest first), keyed by prompt text; skip prompts with a retryable error."""
    kept: WrittenRows = {}
    for table in earlier:
        by_prompt: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for row in table.to_pylist():
            by_prompt[row["prompt"] or "", row["prompt_id"]].append(row)
        first: dict[str, list[Mapping[str, Any]]] = {}  # of several prompts with the same text
        for (text, _), written in by_prompt.items():
            first.setdefault(text, written)
        sound = {text: written for text, written in first.items() if not any(map(rows.is_retryable, written))}
        kept = {**sound, **kept}
    return kept
