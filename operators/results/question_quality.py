"""Measures the quality of written questions: prompts without questions, words covered, and questions dropped."""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.stages.scores import WrittenIndex

_WORDS_WITHOUT_CONTENT = """
a about above across after against all along also an and any are around as at be been before behind being below
beneath beside between beyond both but by can could did do does down during each either every few for from had has
have he her hers him his how i if in inside into is it its itself just like many may me might more most must my near
neither no nor not of off on once one onto or other our out outside over own per she should so some such than that
the their them then there these they this those through to together too toward towards under until up upon very was
we were what when where which while who whose why will with within without would you your
"""
_FUNCTION_WORDS = frozenset(_WORDS_WITHOUT_CONTENT.split())


class QuestionQuality(NamedTuple):
    """Counts that show how good a metric's questions about some prompts are."""

    prompts: int
    failed: int
    """Number of prompts without questions: empty prompts, and prompts for which no reply could be read."""
    questions: int
    dropped: int
    """Number of questions dropped by the metric's own filter."""
    doubted: int
    """Number of questions whose entailment probability is below the threshold."""
    content_words: int
    """Number of content words in the prompts that have questions."""
    covered_words: int
    """Number of content words within the span of a question."""


def assess_questions(
    prompts: pa.Table, questions: pa.Table, entailments: pa.Table | None, *, threshold: float | None
) -> QuestionQuality:
    """Return quality counts for the questions (schema QUESTIONS) about some prompts (schema PROMPTS).

    If `entailments` are given, questions with a probability below `threshold` are counted as doubted.
    """
    written = WrittenIndex(questions, entailments)
    texts = dict(zip(prompts.column("prompt_id").to_pylist(), prompts.column("text").to_pylist(), strict=True))
    rows = [row for row in questions.to_pylist() if row["error"] is None]
    words = {prompt_id: find_content_words(texts[prompt_id]) for prompt_id in written.questions}
    spans: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        if row["start"] is not None and row["keep"] is not False:
            spans.setdefault(row["prompt_id"], []).append((row["start"], row["end"]))
    return QuestionQuality(
        prompts=len(texts),
        failed=len(texts) - len(written.questions),
        questions=len(rows),
        dropped=sum(row["keep"] is False for row in rows),
        doubted=sum(probability < threshold for probability in written.p_entail.values()) if threshold else 0,
        content_words=sum(map(len, words.values())),
        covered_words=sum(
            any(start < last and first < end for start, end in spans.get(prompt_id, ()))
            for prompt_id, own in words.items()
            for first, last in own
        ),
    )


def average_content_words(texts: Sequence[str | None]) -> float:
    """Return the mean number of content words in evenly spaced texts of the list; 0 for an empty list.

    All texts are counted if there are fewer than 2,000; otherwise, 1,000 to 1,500 texts are.
    """
    counts = [len(find_content_words(text or "")) for text in texts[:: max(1, len(texts) // 1_000)]]
    return fmean(counts) if counts else 0.0


def find_content_words(text: str) -> list[tuple[int, int]]:
    """Return the start and end position of each content word in a text."""
    words = re.finditer(r"\w+(?:['’-]\w+)*", text)
    return [match.span() for match in words if match.group().casefold() not in _FUNCTION_WORDS]
