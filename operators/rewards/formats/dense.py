"""One row an image and metric that asks questions: the score of every question, and of every word they are about."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.rewards.formats.format import Format, Sample
from plumbline.operators.rows import ELEMENT

WORD = pa.struct(
    [("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("score", pa.float64()), ("n", pa.int32())]
)
SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("prompt_id", pa.string()),
        ("generator", pa.string()),
        ("prompt", pa.string()),
        ("metric", pa.string()),
        ("score", pa.float64()),
        ("questions", pa.list_(ELEMENT)),
        ("words", pa.list_(WORD)),
        ("error", pa.string()),
    ]
)
"""Scores as the metric gives them, null where a question was left out. A word's score is the mean of the `n` questions
whose span it lies in, null where there is none: no word gets a score that nobody gave it."""
WORDS = re.compile(r"\w+(?:['’-]\w+)*")


def _rows(sample: Sample) -> list[dict[str, Any]]:
    image = sample.best
    ids = {"image_id": image.image_id, "prompt_id": sample.prompt_id, "generator": image.generator}
    return [
        {
            **ids,
            "prompt": sample.prompt,
            "metric": metric,
            "score": image.raw[metric],
            "questions": questions,
            "words": word_scores(sample.prompt, questions),
            "error": image.errors.get(metric),
        }
        for metric, questions in image.elements.items()
    ]


def word_scores(prompt: str, questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The words of a prompt with their places in it and the mean score of the questions about them."""
    return [
        {"text": word[0], "start": word.start(), "end": word.end(), **_mean(word.start(), word.end(), questions)}
        for word in WORDS.finditer(prompt)
    ]


def _mean(start: int, end: int, questions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the questions whose span has a character of these."""
    scores = [
        question["score"]
        for question in questions
        if question["score"] is not None
        and question["start"] is not None
        and question["start"] < end
        and start < question["end"]
    ]
    return {"score": math.fsum(scores) / len(scores) if scores else None, "n": len(scores)}


FORMAT = Format(unit="image", container="parquet", images="none", rows=_rows, schema=SCHEMA, elements=True)
