"""Rows are checked against their schema, and an error survives being stored and read back."""

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, SourceError


def test_absent_columns_are_null_and_the_schema_is_exact() -> None:
    table = rows.table([{"image_id": "i"}], schemas.SCORES)
    assert table.schema == schemas.SCORES
    (row,) = table.to_pylist()
    assert row.pop("image_id") == "i"
    assert set(row.values()) == {None}


def test_an_error_survives_being_stored() -> None:
    error = RowError("corrupt_image", "the image does not decode", retryable=True)
    table = rows.table([{"error": rows.error_to_dict(error)}, {"error": rows.error_to_dict(None)}], schemas.SCORES)
    assert [rows.read_row_error(value) for value in table["error"].to_pylist()] == [error, None]


def test_errors_and_retryable_errors_are_counted_separately() -> None:
    errors = [RowError("a", "m"), None, RowError("b", "m", retryable=True), RowError("c", "m", retryable=True)]
    table = rows.table([{"error": rows.error_to_dict(error)} for error in errors], schemas.SCORES)
    assert rows.count_errors(table) == 3
    assert rows.count_errors(table, retryable_only=True) == 2


def test_missing_columns_are_named_together_with_the_found_ones() -> None:
    with pytest.raises(SourceError, match=r"a.parquet: expected column\(s\) prompt_id, found id, text"):
        rows.require_columns(["id", "text"], ["prompt_id", "text"], "a.parquet")
    rows.require_columns(["text", "prompt_id", "more"], ["prompt_id", "text"], "a.parquet")
