"""The questions stage: what is asked of the images of each prompt, by template or written by a language model."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from operators import rows
from operators.batches import device_lost
from operators.errors import EMPTY_PROMPT, ModelError, RowError
from operators.metrics.metric import Metric
from operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, identified
from operators.models.calls import GenerateModel, Generation, Request, Usage
from operators.stages.stage import Inputs, RowStage, StageOptions

Written = Mapping[str, Sequence[Mapping[str, Any]]]
"""By prompt text, its rows (schema QUESTIONS)."""


@runtime_checkable
class WritingMetric(Protocol):
    """A metric with questions."""

    def asking(self) -> dict[str, Any]:
        """All that decides the questions, but for the model that writes them."""

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The program that has the questions about a prompt written; one that requests nothing needs no model.

        It raises UnreadableReply where there are none.
        """


class PreparedPrompts(NamedTuple):
    """A shard's prompts, with the questions that are known about their texts."""

    prompts: pa.Table
    written: Mapping[str, Written]
    """By metric; nothing is written about these texts."""


class QuestionsStage(RowStage):
    """Prompts (schema PROMPTS) to questions (schema QUESTIONS), about each different text once.

    The tables' metadata has the tokens they took (rows.with_usage).
    """

    name = "questions"
    version = 3
    schema = rows.QUESTIONS
    over = "prompts"
    needs = WritingMetric
    calls: ClassVar = {"writer": "generate"}
    optional = frozenset({"writer"})
    keeps_rows = True
    side_by_side = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"kind": metric.kind, **metric.asking()}

    @classmethod
    def calls_of_row(cls, metric: Metric, words: float) -> float:
        return metric.expected(words).calls

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics: Mapping[str, WritingMetric] = metrics
        self.model: GenerateModel | None = models.get("writer")

    def prepare(self, inputs: Inputs) -> PreparedPrompts:
        kept = {name: kept_questions(inputs.earlier.get(name, ())) for name in inputs.metrics}
        return PreparedPrompts(inputs.rows, kept)

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedPrompts:
        refused = {text or "": [{"error": rows.error_value(error)}] for text in inputs.rows.column("text").to_pylist()}
        return PreparedPrompts(inputs.rows, dict.fromkeys(inputs.metrics, refused))

    def compute(self, prepared: PreparedPrompts) -> Mapping[str, pa.Table]:
        """All metrics' questions at once, so that the model's batches are full."""
        with ThreadPoolExecutor(len(prepared.written)) as pool:
            tables = pool.map(
                lambda name: write(prepared.prompts, self.metrics[name], self.model, prepared.written[name]),
                prepared.written,
            )
            return dict(zip(prepared.written, tables, strict=True))


def write(
    prompts: pa.Table, metric: WritingMetric, model: GenerateModel | None, kept: Written | None = None
) -> pa.Table:
    """Prompts (schema PROMPTS) to questions (schema QUESTIONS); nothing is written about the texts `kept`."""
    ids = prompts.column("prompt_id").to_pylist()
    texts = [text or "" for text in prompts.column("text").to_pylist()]
    programs = {text: _Program(text, metric) for text in texts if text not in (kept or {})}
    usage = _run_all(list(programs.values()), model)
    written = {**(kept or {}), **{text: list(program.rows()) for text, program in programs.items()}}
    records = [
        {**row, "prompt_id": prompt_id, "prompt": text}
        for prompt_id, text in zip(ids, texts, strict=True)
        for row in written[text]
    ]
    return rows.with_usage(rows.table(records, rows.QUESTIONS), usage)


def kept_questions(earlier: Sequence[pa.Table]) -> Written:
    """By prompt text, the rows about it in tables of earlier cells, newest first, but for errors that may pass."""
    kept: dict[str, Sequence[Mapping[str, Any]]] = {}
    for table in earlier:
        kept = _by_text(table.to_pylist()) | kept
    return kept


def _by_text(records: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows of each text, of the first prompt that has it."""
    asked: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        asked[record["prompt"] or ""][record["prompt_id"]].append(record)
    first = {text: next(iter(of_prompts.values())) for text, of_prompts in asked.items()}
    return {text: of_text for text, of_text in first.items() if not any(map(_may_pass, of_text))}


def _may_pass(row: Mapping[str, Any]) -> bool:
    return row["error"] is not None and bool(row["error"]["retryable"])


def _run_all(programs: Sequence["_Program"], model: GenerateModel | None) -> Usage:
    """Runs the programs side by side, round by round; what their calls took."""
    usage = Usage()
    while waiting := [program for program in programs if program.requests]:
        assert model is not None, "a metric whose questions are written has a writer"
        requests = [request for program in waiting for request in program.requests]
        replies = _generate(model, requests)
        usage = sum_usage(replies, usage)
        rest = iter(replies)
        for program in waiting:
            program.resume([next(rest) for _ in program.requests])
    return usage


def _generate(model: GenerateModel, requests: Sequence[Request]) -> Sequence[Generation | RowError]:
    """The model's replies; where it fails as a whole, every request fails and may be tried another time."""
    try:
        return model.generate(requests)
    except Exception as error:
        if device_lost(error) or isinstance(error, ModelError):
            raise  # no request to this model can succeed
        failure = RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)
        return [failure for _ in requests]


def sum_usage(replies: Sequence[Generation | RowError], usage: Usage) -> Usage:
    """The usage with that of the replies."""
    for reply in replies:
        if isinstance(reply, Generation):
            usage = usage.plus(reply.usage).plus(Usage(cut=not reply.complete))
    return usage


class _Program:
    """One prompt's writing program while it runs."""

    def __init__(self, text: str, metric: WritingMetric) -> None:
        self.requests: Sequence[Request] = ()
        self.written: Sequence[WrittenQuestion] = ()
        self.error: RowError | None = EMPTY_PROMPT
        if text.strip():
            self.error = None
            self.steps = metric.write(text)
            self._advance(None)

    def resume(self, replies: Sequence[Generation | RowError]) -> None:
        """Takes the replies to its requests; a request without a reply ends it."""
        failures = [reply for reply in replies if isinstance(reply, RowError)]
        if failures:
            self.error, self.requests = failures[0], ()
        else:
            self._advance([reply for reply in replies if isinstance(reply, Generation)])

    def _advance(self, replies: Sequence[Generation] | None) -> None:
        try:
            self.requests = next(self.steps) if replies is None else self.steps.send(replies)
        except StopIteration as end:
            self.requests, self.written = (), identified(end.value)
            if not self.written:
                self.error = RowError("unreadable_reply", "the model wrote no question about the prompt")
        except UnreadableReply as error:
            self.requests = ()
            self.error = RowError("unreadable_reply", f"the model's reply has not the form asked for: {error}")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Its questions as rows without their prompt_id, or one row with the error."""
        if self.error is not None:
            yield {"error": rows.error_value(self.error)}
        else:
            yield from (question._asdict() for question in self.written)
