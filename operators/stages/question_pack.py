"""Finds the questions that a benchmark ships for a prompt, and makes questions about the text in images."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, check_prompt
from plumbline.operators.metrics.metric import PackedMetric, TextInImageMetric
from plumbline.operators.metrics.parsing import collapse_spaces, shorten
from plumbline.operators.metrics.questions.question_list import TEXT_KIND
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids

NO_QUESTIONS_SENT_ERROR = RowError(
    "no_questions",
    "no questions came with the prompt, and the pack has no prompt, or several prompts, with this text; send a list of "
    "questions, or correct the prompt",
)
"""Error for a prompt that comes without questions, in a call to the scorer or a request to a service."""
ONLY_TEXTS_ERROR = RowError(
    "no_questions",
    "the benchmark has no questions about the prompt, only texts for the metric `text`; add questions, or leave the "
    "metric out",
)


class PackIndex:
    """The questions that a benchmark ships (schema QUESTIONS), indexed by prompt."""

    def __init__(self, questions: pa.Table) -> None:
        self.questions: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in questions.to_pylist():
            self.questions[row["prompt_id"]].append(row)
        self.ids_by_text: dict[str, list[str]] = defaultdict(list)
        """Ids of the prompts with each text."""
        for prompt_id, asked in self.questions.items():
            self.ids_by_text[collapse_spaces(asked[0]["prompt"])].append(prompt_id)

    def find_id(self, prompt_id: str, text: str) -> str | RowError:
        """Return the id under which the pack lists a prompt's questions, or an error if the pack has none.

        The id is `prompt_id` if the pack's prompt with this id has the same text (except for white space). Otherwise it
        is the id of the only prompt with this text.
        """
        text, by_text = collapse_spaces(text), self.ids_by_text.get(collapse_spaces(text), [])
        theirs = collapse_spaces(self.questions[prompt_id][0]["prompt"]) if prompt_id in self.questions else None
        if theirs == text:
            return prompt_id
        if len(by_text) == 1:
            return by_text[0]
        if theirs is not None:
            problem = f"benchmark.questions has another text for prompt_id {prompt_id!r}: {shorten(theirs)}"
        else:
            problem = f"benchmark.questions has no question about prompt_id {prompt_id!r}, nor about its text"
        return RowError("no_questions", f"{problem}; correct the prompt, or leave it out")


def select_questions(prompts: pa.Table, pack: PackIndex, metric: PackedMetric) -> pa.Table:
    """Return the questions (schema QUESTIONS) about the prompts (schema PROMPTS) that the metric uses."""
    records = []
    for prompt_id, text in read_prompts(prompts):
        found = check_prompt(text) or pack.find_id(prompt_id, text)
        usable = found if isinstance(found, RowError) else _select_usable_rows(pack.questions[found], metric)
        for row in make_question_rows(usable) if isinstance(usable, RowError) else usable:
            # Word positions are only valid if the prompt is identical to the pack's.
            positions = {} if row.get("prompt") == text else {"start": None, "end": None}
            records.append({**row, **positions, "prompt_id": prompt_id, "prompt": text})
    return rows.table(records, schemas.QUESTIONS)


def _select_usable_rows(
    packed: Sequence[Mapping[str, Any]], metric: PackedMetric
) -> Sequence[Mapping[str, Any]] | RowError:
    """Return a prompt's questions, except those about the text in the image.

    Returns an error if there are no other questions, or if the metric cannot use them.
    """
    asked = [row for row in packed if not _is_text_row(row)]
    if not asked:
        return ONLY_TEXTS_ERROR
    refusal = metric.explain_pack_refusal({len(row["choices"]) for row in asked if row.get("error") is None})
    return (
        asked
        if refusal is None
        else RowError("no_questions", f"the questions about the prompt cannot be used: {refusal}")
    )


def _is_text_row(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == TEXT_KIND and row.get("answer") is not None and not row.get("choices")


def make_text_questions(prompts: pa.Table, pack: PackIndex, metric: TextInImageMetric) -> pa.Table:
    """Return questions (schema QUESTIONS) about the texts that should appear in the prompts' images.

    `prompts` has the schema PROMPTS. Texts from the pack take precedence over texts in the prompt.
    """
    records = []
    for prompt_id, text in read_prompts(prompts):
        found = pack.find_id(prompt_id, text)
        packed = [] if isinstance(found, RowError) else pack.questions[found]
        error = next((RowError(**row["error"]) for row in packed if row.get("error") is not None), None)
        if error == NO_QUESTIONS_SENT_ERROR:
            error = None  # the texts are then taken from the prompt itself
        questions = (
            check_prompt(text)
            or error
            or metric.make_questions(text, [row["answer"] for row in packed if _is_text_row(row)])
        )
        written = questions if isinstance(questions, RowError) else assign_ids(questions)
        records += [{**row, "prompt_id": prompt_id, "prompt": text} for row in make_question_rows(written)]
    return rows.table(records, schemas.QUESTIONS)


def read_prompts(prompts: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the id and text of each prompt in a table (schema PROMPTS)."""
    ids, texts = (prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    return zip(ids, (text or "" for text in texts), strict=True)


def make_question_rows(written: Sequence[WrittenQuestion] | RowError) -> list[dict[str, Any]]:
    """Return the questions as rows without a prompt_id, or a single row with the error."""
    if isinstance(written, RowError):
        return [{"error": rows.error_to_dict(written)}]
    return [question._asdict() for question in written]
