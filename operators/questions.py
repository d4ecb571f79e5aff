"""The questions stage: what is asked of the images of each prompt, by template or written by a language model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators import rows
from operators.batches import device_lost
from operators.errors import ModelError, RowError
from operators.metrics.configs import WritingConfig
from operators.metrics.vqascore import VqaScoreConfig
from operators.metrics.writing import UnreadableReply, WrittenQuestion, content_id, identified
from operators.models.calls import GenerateModel, Generation, Request, Usage

VERSION = 3

EMPTY_PROMPT = RowError("empty_prompt", "the prompt has no text; fill in its `text`, or drop the prompt")


def ask(prompts: pa.Table, metric: VqaScoreConfig) -> pa.Table:
    """Prompts (schema PROMPTS) to questions (schema QUESTIONS): VQAScore asks one per prompt, one answer to each."""
    return rows.table([_question(prompt, metric) for prompt in prompts.to_pylist()], rows.QUESTIONS)


def _question(prompt: dict[str, Any], metric: VqaScoreConfig) -> dict[str, Any]:
    row = {"prompt_id": prompt["prompt_id"], "prompt": prompt["text"]}
    if not (prompt["text"] or "").strip():
        return {**row, "error": rows.error_value(EMPTY_PROMPT)}
    text, choices = metric.question(prompt["text"]), [metric.asks.answer]
    return {**row, "question_id": content_id(text, choices, None), "text": text, "choices": choices}


Written = Mapping[str, Sequence[Mapping[str, Any]]]
"""By prompt text, its rows (schema QUESTIONS)."""


def write(prompts: pa.Table, metric: WritingConfig, model: GenerateModel, kept: Written | None = None) -> pa.Table:
    """Prompts (schema PROMPTS) to questions (schema QUESTIONS) that a model writes, each different text once.

    Nothing is written about the texts `kept`, whose rows stand. The table's metadata carries the tokens it took
    (rows.with_usage).
    """
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


def _run_all(programs: Sequence["_Program"], model: GenerateModel) -> Usage:
    """Runs the programs side by side, round by round; what their calls took."""
    usage = Usage()
    while waiting := [program for program in programs if program.requests]:
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

    def __init__(self, text: str, metric: WritingConfig) -> None:
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
