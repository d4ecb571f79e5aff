"""Reads the answers of pairwise judges from cells, as tables of comparisons or as differences between generators."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import format_quantity

NO_ANSWER: Mapping[str, Any] = dict.fromkeys(["choice", "p_first", "reason"])


def list_comparisons(pairs: pa.Table, metric: str) -> pa.Table:
    """Return the judge's two answers about each pair as rows (schema COMPARED_PAIRS): one for each order of the images.

    `pairs` contains rows of a judge's cell (schema PAIRS).
    """
    records = []
    for row in pairs.to_pylist():
        own, other = (row["generator"], row["image_id"]), (row["other_generator"], row["other_image_id"])
        ids = {"prompt_id": row["prompt_id"], "metric": metric, "error": row["error"]}
        for shown, answer in zip(((other, own), (own, other)), row["answers"] or (NO_ANSWER, NO_ANSWER), strict=True):
            (first_generator, first_image_id), (second_generator, second_image_id) = shown
            images = {
                "first_generator": first_generator,
                "second_generator": second_generator,
                "first_image_id": first_image_id,
                "second_image_id": second_image_id,
            }
            records.append({**ids, **images, **answer})
    return rows.table(records, schemas.COMPARED_PAIRS)


def read_duels(
    tables: Iterable[pa.Table], prompt_ids: Sequence[str], generators: Sequence[str]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Read a judge's cells and return the results of each pair of generators, prompt by prompt.

    The results have the same form as in decided_pairs.Duels. The cells have the schema PAIRS.
    If a prompt has several images, their comparisons are averaged.
    """
    number_of = {prompt_id: number for number, prompt_id in enumerate(prompt_ids)}
    sums = {both: np.zeros(len(prompt_ids)) for both in combinations(generators, 2)}
    counts = {both: np.zeros(len(prompt_ids)) for both in sums}
    for row in (row for table in tables for row in table.to_pylist() if row["error"] is None):
        both, sign = (row["other_generator"], row["generator"]), 1
        if both not in sums:
            both, sign = (row["generator"], row["other_generator"]), -1
        shown_first, shown_second = (answer["p_first"] for answer in row["answers"])
        sums[both][number_of[row["prompt_id"]]] += sign * (shown_first - shown_second)
        counts[both][number_of[row["prompt_id"]]] += 1
    return {both: np.where(counts[both] > 0, sums[both] / np.maximum(counts[both], 1), np.nan) for both in sums}


def describe_comparisons(compared: pa.Table, metric: str) -> str:
    """Return a sentence about a judge: how many pairs it compared, and how often it preferred the first image."""
    own = compared.filter(pc.equal(compared.column("metric"), metric))
    answered = own.filter(pc.is_null(own.column("error")))
    failed = (len(own) - len(answered)) // 2
    text = f"{metric}: {format_quantity(len(own) // 2, 'pair')} compared in both orders"
    if len(answered):
        p_first = pc.mean(answered.column("p_first")).as_py()
        text += f"; the image shown first is better with a mean probability of {p_first:.2f}"
    return text + (f"; {format_quantity(failed, 'pair')} failed" if failed else "")
