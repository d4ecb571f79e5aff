"""The questions stage: what is asked of the images of each prompt."""

from typing import Any

import pyarrow as pa

from operators import rows
from operators.errors import RowError
from operators.metrics.vqascore import VqaScoreConfig

VERSION = 1

EMPTY_PROMPT = RowError("empty_prompt", "the prompt has no text; fill in its `text`, or drop the prompt")


def ask(prompts: pa.Table, metric: VqaScoreConfig) -> pa.Table:
    """Prompts (schema PROMPTS) to questions (schema QUESTIONS): VQAScore asks one per prompt, one answer to each."""
    return rows.table([_question(prompt, metric) for prompt in prompts.to_pylist()], rows.QUESTIONS)


def _question(prompt: dict[str, Any], metric: VqaScoreConfig) -> dict[str, Any]:
    row = {"prompt_id": prompt["prompt_id"], "question_id": "0"}
    if not (prompt["text"] or "").strip():
        return {**row, "error": rows.error_value(EMPTY_PROMPT)}
    return {**row, "text": metric.question(prompt["text"]), "choices": [metric.answer]}
