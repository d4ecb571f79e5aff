"""The questions that a benchmark ships, found by the prompts that they are about."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, check_prompt
from plumbline.operators.metrics.metric import PackedMetric, WantingMetric
from plumbline.operators.metrics.parsing import one_line, shown
from plumbline.operators.metrics.question_list import TEXT
from plumbline.operators.metrics.writing import WrittenQuestion, identified

NONE_CAME = RowError(
    "no_questions",
    "no questions came with the prompt, and no pack here has some about its text, or has several prompts of it; send "
    "its list of questions, or correct the prompt",
)
"""Of a prompt in a call of the scorer, or a request of a service."""
ONLY_TEXTS = RowError(
    "no_questions",
    "of the prompt only texts are known that its images are to show, which the metric text compares; add questions to "
    "them, or leave the metric out",
)


class PackIndex:
    """The questions that a benchmark ships (schema QUESTIONS), by prompt."""

    def __init__(self, questions: pa.Table) -> None:
        self.asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in questions.to_pylist():
            self.asked[row["prompt_id"]].append(row)
        self.ids_of: dict[str, list[str]] = defaultdict(list)
        """By text, the prompts that have it."""
        for prompt_id, of_prompt in self.asked.items():
            self.ids_of[one_line(of_prompt[0]["prompt"])].append(prompt_id)

    def id_of(self, prompt_id: str, text: str) -> str | RowError:
        """Under which of its ids the pack has a prompt: its own, or that of the one prompt that has its text.

        The text that the pack has for the same id must be the same, but for white space.
        """
        text, by_text = one_line(text), self.ids_of.get(one_line(text), [])
        theirs = one_line(self.asked[prompt_id][0]["prompt"]) if prompt_id in self.asked else None
        if theirs == text:
            return prompt_id
        if len(by_text) == 1:
            return by_text[0]
        if theirs is not None:
            problem = f"benchmark.questions has another text for prompt_id {prompt_id!r}: {shown(theirs)}"
        else:
            problem = f"benchmark.questions has no question about prompt_id {prompt_id!r}, nor about its text"
        return RowError("no_questions", f"{problem}; correct the prompt, or leave it out")

    def of(self, prompt_id: str, text: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows about a prompt, or a single row with the error if it has none."""
        known = check_prompt(text) or self.id_of(prompt_id, text)
        return [{"error": rows.error_value(known)}] if isinstance(known, RowError) else self.asked[known]

    def texts(self, prompt_id: str, text: str) -> list[str] | RowError:
        """The texts to be written in an image of the prompt, none where none are known; or why they cannot be read."""
        known = self.id_of(prompt_id, text)
        asked = [] if isinstance(known, RowError) else self.asked[known]
        errors = [RowError(**row["error"]) for row in asked if row.get("error") is not None]
        if errors and errors[0] != NONE_CAME:
            return errors[0]
        return [row["answer"] for row in asked if _is_text(row)]


def select_questions(prompts: pa.Table, pack: PackIndex, metric: PackedMetric) -> pa.Table:
    """Return the questions (schema QUESTIONS) about prompts (schema PROMPTS) that the metric scores by."""
    ids, texts = (prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    records = [
        {**_placed(row, text or ""), "prompt_id": prompt_id, "prompt": text or ""}
        for prompt_id, text in zip(ids, texts, strict=True)
        for row in _fitting(pack.of(prompt_id, text or ""), metric)
    ]
    return rows.table(records, schemas.QUESTIONS)


def _is_text(row: Mapping[str, Any]) -> bool:
    """Return True if a row is a text that the image should contain, and not a question about it."""
    return row.get("kind") == TEXT and row.get("answer") is not None and not row.get("choices")


def _fitting(known: Sequence[Mapping[str, Any]], metric: PackedMetric) -> Sequence[Mapping[str, Any]]:
    """Return a prompt's questions without its texts, or a row with the reason why the metric cannot score by them."""
    asked = [row for row in known if not _is_text(row)]
    if not asked:
        return [{"error": rows.error_value(ONLY_TEXTS)}]
    refusal = metric.refusal_of_pack({len(row["choices"]) for row in asked if row.get("error") is None})
    if refusal is None:
        return asked
    return [{"error": rows.error_value(RowError("no_questions", f"by the questions about the prompt, {refusal}"))}]


def write_wanted_questions(prompts: pa.Table, pack: PackIndex, metric: WantingMetric) -> pa.Table:
    """Return questions (schema QUESTIONS) about the texts that the metric wants in the images of prompts.

    `prompts` has the schema PROMPTS. Texts of the pack take precedence over texts that a prompt names.
    """
    ids, texts = (prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    records = [
        {**row, "prompt_id": prompt_id, "prompt": text or ""}
        for prompt_id, text in zip(ids, texts, strict=True)
        for row in question_rows(_write_questions(prompt_id, text or "", pack, metric))
    ]
    return rows.table(records, schemas.QUESTIONS)


def _write_questions(
    prompt_id: str, text: str, pack: PackIndex, metric: WantingMetric
) -> Sequence[WrittenQuestion] | RowError:
    known = check_prompt(text) or pack.texts(prompt_id, text)
    questions = known if isinstance(known, RowError) else metric.want(text, known)
    return questions if isinstance(questions, RowError) else identified(questions)


def question_rows(written: Sequence[WrittenQuestion] | RowError) -> list[dict[str, Any]]:
    """The questions as rows without their prompt_id, or one row with the error."""
    if isinstance(written, RowError):
        return [{"error": rows.error_value(written)}]
    return [question._asdict() for question in written]


def _placed(row: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The row, without the place of its words where the prompt is not letter for letter the pack's."""
    return dict(row) if row.get("prompt") == text else {**row, "start": None, "end": None}
