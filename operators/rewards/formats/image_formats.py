"""Formats with one image per example: the best image of each prompt, or every image."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.base.schemas import ELEMENT, floats, texts
from plumbline.operators.rewards.formats.format import IMAGE_TYPE, Format, Sample, embed_image, mark_image_columns

BEST_OF_N_SCHEMA = mark_image_columns(
    pa.schema(
        [
            ("image", IMAGE_TYPE),
            *texts("text", "prompt_id", "image_id", "generator"),
            *floats("reward", "z_score"),
            ("n", pa.int64()),
            ("mean_reward", pa.float64()),
        ]
    ),
    "image",
)
"""Columns of the format; `n` is the number of candidate images, and `mean_reward` their mean reward."""


def _make_best_of_n_rows(sample: Sample) -> list[dict[str, Any]]:
    rewards = [image.reward for image in sample.images if image.reward is not None]
    return [
        {
            "image": embed_image(sample.best),
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


BEST_OF_N_FORMAT = Format(
    unit="best", container="parquet", images="embedded", rows=_make_best_of_n_rows, schema=BEST_OF_N_SCHEMA
)
"""The best image of each prompt with the prompt's text, for fine-tuning text-to-image models."""


INSTRUCT_PIX2PIX_SCHEMA = mark_image_columns(
    pa.schema(
        [
            ("input_image", IMAGE_TYPE),
            ("edit_prompt", pa.string()),
            ("edited_image", IMAGE_TYPE),
            *(field for field in BEST_OF_N_SCHEMA if field.name not in ("image", "text")),
        ]
    ),
    "input_image",
    "edited_image",
)


def _make_instruct_pix2pix_rows(sample: Sample) -> list[dict[str, Any]]:
    if len(sample.sources) != 1:
        return []
    columns = {"input_image": embed_image(sample.sources[0]), "edit_prompt": sample.prompt}
    return [{**columns, "edited_image": row.pop("image"), **row} for row in _make_best_of_n_rows(sample)]


INSTRUCT_PIX2PIX_FORMAT = Format(
    unit="best",
    container="parquet",
    images="embedded",
    edits="only",
    rows=_make_instruct_pix2pix_rows,
    schema=INSTRUCT_PIX2PIX_SCHEMA,
)
"""The best edit for each instruction with its source image, for the InstructPix2Pix trainer in diffusers."""


RAW_SCORES_TYPE = pa.list_(pa.struct([("metric", pa.string()), ("score", pa.float64()), ("error", pa.string())]))
REWARDS_SCHEMA = pa.schema(
    [
        *texts("image_id", "prompt_id", "generator", "prompt"),
        *floats("reward", "z_score", "rank_advantage"),
        ("raw", RAW_SCORES_TYPE),
    ]
)
"""Columns of the format. If a score is missing, `raw` contains the error, and `reward`, `z_score` and `rank_advantage`
are null.
"""


def _make_rewards_rows(sample: Sample) -> list[dict[str, Any]]:
    image = sample.best
    raw = [{"metric": name, "score": score, "error": image.errors.get(name)} for name, score in image.raw.items()]
    return [
        {
            "image_id": image.image_id,
            "prompt_id": sample.prompt_id,
            "generator": image.generator,
            "prompt": sample.prompt,
            "reward": image.reward,
            "z_score": image.z_score,
            "rank_advantage": image.rank_advantage,
            "raw": raw,
        }
    ]


REWARDS_FORMAT = Format(
    unit="image", container="parquet", images="none", rows=_make_rewards_rows, schema=REWARDS_SCHEMA
)
"""One row per image: its score by each metric, its reward, and the z-score and rank of the reward within the prompt."""


WORD_SCORE_TYPE = pa.struct(
    [("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("score", pa.float64()), ("n", pa.int32())]
)
DENSE_SCHEMA = pa.schema(
    [
        *texts("image_id", "prompt_id", "generator", "prompt", "metric"),
        ("score", pa.float64()),
        ("questions", pa.list_(ELEMENT)),
        ("words", pa.list_(WORD_SCORE_TYPE)),
        ("error", pa.string()),
    ]
)
"""Columns of the format. Question scores are as the metric returns them, and null if a question was left out. A word's
score is the mean over the `n` questions whose span overlaps the word; it is null if there are no such questions.
"""
WORD_PATTERN = re.compile(r"\w+(?:['’-]\w+)*")


def _make_dense_rows(sample: Sample) -> list[dict[str, Any]]:
    image = sample.best
    return [
        {
            "image_id": image.image_id,
            "prompt_id": sample.prompt_id,
            "generator": image.generator,
            "prompt": sample.prompt,
            "metric": metric,
            "score": image.raw[metric],
            "questions": questions,
            "words": compute_word_scores(sample.prompt, questions),
            "error": image.errors.get(metric),
        }
        for metric, questions in image.elements.items()
    ]


def compute_word_scores(prompt: str, questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the words of a prompt, with their spans and the number and mean score of questions that overlap them.

    Questions without a score or a span are ignored; the mean is None if no question is left.
    """
    rated = [row for row in questions if row["score"] is not None and row["start"] is not None]
    words = []
    for word in WORD_PATTERN.finditer(prompt):
        start, end = word.span()
        scores = [row["score"] for row in rated if row["start"] < end and start < row["end"]]
        mean = math.fsum(scores) / len(scores) if scores else None
        words.append({"text": word[0], "start": start, "end": end, "score": mean, "n": len(scores)})
    return words


DENSE_FORMAT = Format(
    unit="image", container="parquet", images="none", rows=_make_dense_rows, schema=DENSE_SCHEMA, elements=True
)
"""One row per image and metric with questions. A row has the scores of all questions, and of the prompt's words."""
