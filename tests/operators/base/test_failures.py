"""Failed rows are summarised in one row per kind of failure."""

from typing import Any

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.failures import count_failures, count_rows_by_kind, iterate_failure_kinds, merge_failures


def make_failure(image: str, kind: str, *, retryable: bool = False, file: str | None = "a.parquet") -> dict[str, Any]:
    return {"image_id": image, "kind": kind, "message": f"of {image}", "retryable": retryable, "file": file}


def test_merged_counts_keep_the_first_row_of_each_kind() -> None:
    errors = [
        make_failure("1", "b"),
        make_failure("2", "a"),
        make_failure("3", "b"),
        make_failure("4", "b", retryable=True),
        make_failure("5", "b", file=None),
        make_failure("6", "a"),
        make_failure("7", "c"),
    ]
    whole = count_failures(rows.table(errors, schemas.ERRORS))
    cut = [count_failures(rows.table(some, schemas.ERRORS)) for some in (errors[:3], [], errors[3:6], errors[6:])]
    assert merge_failures(cut) == whole
    assert list(zip(whole["image_id"].to_pylist(), whole["rows"].to_pylist(), strict=True)) == [
        ("1", 2), ("2", 2), ("4", 1), ("5", 1), ("7", 1)
    ]  # fmt: skip
    assert count_rows_by_kind(whole) == [("b", 4), ("a", 2), ("c", 1)]
    assert [(kind["message"], kind["rows"]) for kind in iterate_failure_kinds(whole)] == [
        ("of 1", 4), ("of 2", 2), ("of 7", 1)
    ]  # fmt: skip
    assert count_rows_by_kind(merge_failures([])) == []
