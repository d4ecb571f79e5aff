"""Summarises the failures of a run: the number of failed rows of each kind, and the first row of each kind."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas


def count_failures(errors: pa.Table) -> pa.Table:
    """Return the first row of each kind of error, with the number of rows of that kind (schema FAILURES).

    `errors` has the schema ERRORS. Kinds are distinguished as in `merge_failures`.
    """
    return merge_failures([errors.append_column("rows", pa.repeat(pa.scalar(1, pa.int64()), len(errors)))])


def merge_failures(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table of failures (schema FAILURES), with similar failures merged into one row.

    Failures are merged if they have the same kind and the same `retryable`, and either all or none of them name a
    file. The merged row is the first of them, with the sum of their row counts.
    """
    table = pa.concat_tables([schemas.FAILURES.empty_table(), *tables])
    marked = table.append_column("in_file", pc.is_valid(table.column("file")))
    marked = marked.append_column("index", pa.array(range(len(table)), pa.int64()))
    kinds = marked.group_by(["kind", "retryable", "in_file"], use_threads=False)
    kinds = kinds.aggregate([("index", "min"), ("rows", "sum")]).sort_by("index_min")
    first = table.take(kinds.column("index_min"))
    return first.set_column(first.column_names.index("rows"), "rows", kinds.column("rows_sum")).combine_chunks()


def iterate_failure_kinds(failures: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the first failure of each kind, in order of appearance; its `rows` is the sum over that kind."""
    by_kind: dict[str, dict[str, Any]] = {}
    for row in failures.to_pylist():
        first = by_kind.setdefault(row["kind"], {**row, "rows": 0})
        first["rows"] += row["rows"]
    yield from by_kind.values()


def count_rows_by_kind(failures: pa.Table) -> list[tuple[str, int]]:
    """Return (kind, number of failed rows) for each kind of failure, most frequent first."""
    counts = [(kind["kind"], kind["rows"]) for kind in iterate_failure_kinds(failures)]
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))


def describe_row_ids(row: Mapping[str, Any], *columns: str) -> str:
    """Return text that identifies a failed row by these columns and its image id (its prompt id if it has no image)."""
    ids = [f"{kind} {row[f'{kind}_id']}" for kind in ("image", "prompt") if row[f"{kind}_id"] is not None]
    return ", ".join([*(row[column] for column in columns), *ids[:1]])
