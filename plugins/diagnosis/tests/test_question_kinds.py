"""The scores of a kind's questions are pooled over images; each question counts once, and failed rows do not count."""

from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.plugins.diagnosis.question_kinds import KindScore, KindSums

KIND_BY_QUESTION = {
    ("p", "1"): "attribute - color",
    ("p", "2"): "attribute - size",
    ("p", "3"): "global",
    ("p", "4"): None,
}


def make_row(generator: str, **columns: Any) -> dict[str, Any]:
    return {"image_id": "i", "prompt_id": "p", "generator": generator, "metric": "m", "score": 0.5, **columns}


def make_element(question_id: str, score: float | None) -> dict[str, Any]:
    return {"question_id": question_id, "text": "?", "score": score}


def make_table(*records: dict[str, Any]) -> pa.Table:
    return rows.table(records, schemas.ELEMENT_SCORES)


def test_every_question_counts_once_at_each_level_of_its_kind() -> None:
    pool = KindSums()
    pool.add(
        make_table(make_row("a", elements=[make_element("1", 1.0), make_element("2", 0.0), make_element("3", 1.0)])),
        KIND_BY_QUESTION,
    )
    pool.add(
        make_table(make_row("a", elements=[make_element("1", 0.0), make_element("2", None), make_element("4", 1.0)])),
        KIND_BY_QUESTION,
    )
    assert pool.compute_means() == [
        KindScore("a", 1, "attribute", pytest.approx(1 / 3), 3),
        KindScore("a", 1, "global", 1.0, 1),
        KindScore("a", 2, "attribute - color", 0.5, 2),
        KindScore("a", 2, "attribute - size", 0.0, 1),
    ]


def test_judges_ratings_are_pooled_by_question_name() -> None:
    """UniGenBench++'s primary dimension is the text before the dash, even in `Attribute - Color 2`."""
    pool = KindSums()
    rated = [("Attribute - Color", 1.0), ("Attribute - Color 2", 0.0), ("Style", 1.0)]
    ratings = [{"name": name, "value": value} for name, value in rated]
    pool.add(make_table(make_row("a", ratings=ratings), make_row("b", ratings=ratings[2:])), {})
    assert pool.compute_means() == [
        KindScore("a", 1, "Attribute", 0.5, 2),
        KindScore("a", 1, "Style", 1.0, 1),
        KindScore("b", 1, "Style", 1.0, 1),
        KindScore("a", 2, "Attribute - Color", 0.5, 2),
    ]


def test_a_row_with_an_error_does_not_count() -> None:
    failed = make_row(
        "a", score=None, error=rows.error_to_dict(RowError("corrupt_image", "the image cannot be decoded"))
    )
    pool = KindSums()
    pool.add(make_table(failed), KIND_BY_QUESTION)
    assert pool.compute_means() == []
