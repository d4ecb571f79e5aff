"""What kinds of failure a run has: of each the number of rows and the first of them, however many rows failed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas

KINDS = ["kind", "retryable", "placed"]


def count_failures(errors: pa.Table) -> pa.Table:
    """The kinds of a table of ERRORS (schema FAILURES)."""
    return merge_failures([errors.append_column("rows", pa.repeat(pa.scalar(1, pa.int64()), len(errors)))])


def merge_failures(tables: Sequence[pa.Table]) -> pa.Table:
    """The kinds of several tables of FAILURES, which follow each other, in the order of their first rows.

    Rows of a kind count apart where they may pass another time, and where they stand in no file.
    """
    table = pa.concat_tables([schemas.FAILURES.empty_table(), *tables])
    marked = table.append_column("placed", pc.is_valid(table.column("file")))
    marked = marked.append_column("at", pa.array(range(len(table)), pa.int64()))
    kinds = marked.group_by(KINDS, use_threads=False).aggregate([("at", "min"), ("rows", "sum")]).sort_by("at_min")
    first = table.take(kinds.column("at_min"))
    return first.set_column(first.column_names.index("rows"), "rows", kinds.column("rows_sum")).combine_chunks()


def kinds_of_failure(failures: pa.Table) -> Iterator[dict[str, Any]]:
    """By kind its first row, with `rows`, the number of them, in the order of the first rows."""
    by_kind: dict[str, dict[str, Any]] = {}
    for row in failures.to_pylist():
        first = by_kind.setdefault(row["kind"], {**row, "rows": 0})
        first["rows"] += row["rows"]
    yield from by_kind.values()


def failure_counts(failures: pa.Table) -> list[tuple[str, int]]:
    """The kinds with their number of rows, most first."""
    counts = [(kind["kind"], kind["rows"]) for kind in kinds_of_failure(failures)]
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))


def name_row(row: Mapping[str, Any], *whose: str) -> str:
    """Return in words whose a failed row is (`whose` are columns), and its image or else its prompt if it names one."""
    ids = [f"{kind} {row[f'{kind}_id']}" for kind in ("image", "prompt") if row[f"{kind}_id"] is not None]
    return ", ".join([*(row[column] for column in whose), *ids[:1]])
