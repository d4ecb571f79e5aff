"""Reads the scores that a run of a peer or of Plumbline has written so far."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PEER_FILE, STORE_FOLDER = "scores", "store"
"""What a peer's script and Plumbline write, in the folder of a run."""
IMAGE_STAGES = ("similarities", "answers")
"""Stages of Plumbline that have a row for each image."""


def count_scores(output: Path) -> int:
    """Return the number of scores on disk; for Plumbline, the rows of committed cells."""
    scores = output / PEER_FILE
    if scores.is_file():
        return scores.read_bytes().count(b"\n")
    files = list(scores.glob("*.parquet")) if scores.is_dir() else []
    for stage in IMAGE_STAGES:
        files += (output / STORE_FOLDER / stage).glob("*/*/*.parquet")
    return sum(map(_count_rows, files))


def _count_rows(file: Path) -> int:
    try:
        count: int = pq.read_metadata(file).num_rows
        return count
    except (OSError, pa.ArrowInvalid):  # it is being written
        return 0


def read_scores(output: Path, metric: str) -> dict[str, float | None]:
    """Return the score of each image id; None where a score is null, and no entry where there is no row."""
    return {row["image_id"]: row["score"] for row in _read_rows(output, metric) if row["image_id"] is not None}


def _read_rows(output: Path, metric: str) -> list[dict[str, Any]]:
    scores = output / PEER_FILE
    if scores.is_file():
        return [json.loads(line) for line in scores.read_text().splitlines() if line.endswith("}")]
    if scores.is_dir():
        return _read_parquet(sorted(scores.glob("*.parquet")))
    runs = sorted((output / STORE_FOLDER / "runs").glob("[0-9]*/scores.parquet"))
    rows = _read_parquet(sorted(runs[-1].glob("*.parquet"))) if runs else []
    return [row for row in rows if row["metric"] == metric]


def _read_parquet(files: list[Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in files:
        rows += pq.read_table(file, partitioning=None).to_pylist()
    return rows
