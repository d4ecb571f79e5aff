"""The scores stage: one number per image and metric, from its answers or its similarity."""

import statistics
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from operators import rows
from operators.metrics.clipscore import ClipScoreConfig, scale_cosine
from operators.metrics.vqascore import VqaScoreConfig, reduce_answer

VERSION = 1

MetricConfig = VqaScoreConfig | ClipScoreConfig


def score(cell: pa.Table, name: str, metric: MetricConfig) -> pa.Table:
    """Answers or similarities of one shard to scores (schema SCORES); an error passes on with a null score."""
    scored = _score_answers if isinstance(metric, VqaScoreConfig) else _score_similarity
    records = []
    for row in cell.to_pylist():
        columns = {} if row["error"] is not None else scored(row, metric)  # type: ignore[arg-type]
        records.append({**_ids(row), "metric": name, "error": row["error"], **columns})
    return rows.table(records, rows.SCORES)


def _ids(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("image_id", "prompt_id", "generator")}


def _score_answers(row: Mapping[str, Any], metric: VqaScoreConfig) -> dict[str, Any]:
    """The mean over the questions of the first choice's likelihood; VQAScore has one question."""
    likelihoods = [reduce_answer(answer["token_logprobs"][0], metric.reduction) for answer in row["answers"]]
    return {"score": statistics.fmean(likelihoods), "n_questions": len(likelihoods), "truncated": False}


def _score_similarity(row: Mapping[str, Any], metric: ClipScoreConfig) -> dict[str, Any]:
    return {"score": scale_cosine(row["similarity"], metric.variant), "truncated": row["truncated"]}
