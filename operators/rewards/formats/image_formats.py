"""Formats whose example is one image: the best of its prompt, or each."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.base.schemas import ELEMENT, floats, texts
from plumbline.operators.rewards.formats.format import IMAGE, Format, Sample, embedded, with_images

BEST_OF_N_SCHEMA = with_images(
    pa.schema(
        [
            ("image", IMAGE),
            *texts("text", "prompt_id", "image_id", "generator"),
            *floats("reward", "z_score"),
            ("n", pa.int64()),
            ("mean_reward", pa.float64()),
        ]
    ),
    "image",
)
"""`n` is of how many images the best was taken, and `mean_reward` their mean."""


def _best_of_n_rows(sample: Sample) -> list[dict[str, Any]]:
    rewards = [picture.reward for picture in sample.pictures if picture.reward is not None]
    return [
        {
            "image": embedded(sample.best),
            "text": sample.prompt,
            "prompt_id": sample.prompt_id,
            "image_id": sample.best.image_id,
            "generator": sample.best.generator,
            "reward": sample.best.reward,
            "z_score": sample.best.z_score,
            "n": len(rewards),
            "mean_reward": sum(rewards) / len(rewards),
        }
    ]


BEST_OF_N = Format(unit="best", container="parquet", images="embedded", rows=_best_of_n_rows, schema=BEST_OF_N_SCHEMA)
"""The best image of each prompt, with its text: what trainers of text-to-image models fine-tune on."""


INSTRUCT_PIX2PIX_SCHEMA = with_images(
    pa.schema(
        [
            ("input_image", IMAGE),
            ("edit_prompt", pa.string()),
            ("edited_image", IMAGE),
            *(field for field in BEST_OF_N_SCHEMA if field.name not in ("image", "text")),
        ]
    ),
    "input_image",
    "edited_image",
)


def _instruct_pix2pix_rows(sample: Sample) -> list[dict[str, Any]]:
    """One row; none for an edit of several sources."""
    if len(sample.sources) != 1:
        return []
    shown = {"input_image": embedded(sample.sources[0]), "edit_prompt": sample.prompt}
    return [{**shown, "edited_image": row.pop("image"), **row} for row in _best_of_n_rows(sample)]


INSTRUCT_PIX2PIX = Format(
    unit="best",
    container="parquet",
    images="embedded",
    edits="only",
    rows=_instruct_pix2pix_rows,
    schema=INSTRUCT_PIX2PIX_SCHEMA,
)
"""The best edit of each instruction with its source: what diffusers' InstructPix2Pix trainer fine-tunes on."""


RAW = pa.list_(pa.struct([("metric", pa.string()), ("score", pa.float64()), ("error", pa.string())]))
REWARDS_SCHEMA = pa.schema(
    [
        *texts("image_id", "prompt_id", "generator", "prompt"),
        *floats("reward", "z_score", "rank_advantage"),
        ("raw", RAW),
    ]
)
"""`reward`, `z_score` and `rank_advantage` are null where a metric has no score, and `raw` says why."""


def _rewards_rows(sample: Sample) -> list[dict[str, Any]]:
    image = sample.best
    raw = [{"metric": name, "score": score, "error": image.errors.get(name)} for name, score in image.raw.items()]
    ids = {"image_id": image.image_id, "prompt_id": sample.prompt_id, "generator": image.generator}
    standing = {name: getattr(image, name) for name in ("reward", "z_score", "rank_advantage")}
    return [{**ids, "prompt": sample.prompt, **standing, "raw": raw}]


REWARDS = Format(unit="image", container="parquet", images="none", rows=_rewards_rows, schema=REWARDS_SCHEMA)
"""One row an image: every metric's own score, the reward made of them, and how it stands among its prompt's images."""


WORD = pa.struct(
    [("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("score", pa.float64()), ("n", pa.int32())]
)
DENSE_SCHEMA = pa.schema(
    [
        *texts("image_id", "prompt_id", "generator", "prompt", "metric"),
        ("score", pa.float64()),
        ("questions", pa.list_(ELEMENT)),
        ("words", pa.list_(WORD)),
        ("error", pa.string()),
    ]
)
"""Scores as the metric gives them, null where a question was left out. A word's score is the mean of the `n` questions
whose span it lies in, null where there is none: no word gets a score that nobody gave it."""
WORDS = re.compile(r"\w+(?:['’-]\w+)*")


def _dense_rows(sample: Sample) -> list[dict[str, Any]]:
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


DENSE = Format(unit="image", container="parquet", images="none", rows=_dense_rows, schema=DENSE_SCHEMA, elements=True)
"""One row an image and metric that asks questions: the score of every question, and of every word they are about."""
