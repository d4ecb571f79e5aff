"""Helpers that make and split tables, convert row errors, attach metadata to tables, and check columns and lists."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import reduce
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, RowError, SourceError
from plumbline.operators.base.usage import Usage

USAGE_KEY = b"usage"
KEPT_KEY = b"kept"
PANDAS_NULLS = ("NAType", "NaTType")
"""Type names of pandas' null values; importing pandas would slow down the start of workers."""


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the rows as a table with exactly this schema; absent columns are null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def digest_inputs(*parts: str) -> str:
    """Return a digest of all inputs of a row except its image; the column `basis` contains this digest."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def add_missing_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with all columns of the schema; columns that the table lacks are filled with nulls."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def split_by_image(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a row about several images (ANSWERS, SIMILARITIES or a similar schema) as one row per image."""
    for column in ("statistics", "comparisons", "values"):
        if column in row:
            return [{**row, **image} for image in row[column]]
    images = row.get("images")
    if images is None:
        return [row]
    if isinstance(images, list):
        return [{**row, "similarity": similarity} for similarity in images]
    answers = row["answers"]
    size = len(answers) // images
    starts = range(0, len(answers), size) if size else ()
    return [{**row, "answers": answers[start : start + size]} for start in starts] or [row]


def split_by_call(row: Mapping[str, Any]) -> list[list[Mapping[str, Any] | None]]:
    """Return one list per image of a row, with one row per call to the judge, or None if a reply was unreadable.

    If the row is not from a judge, each list has one row.
    """
    if "verdicts" not in row:
        return [[image] for image in split_by_image(row)]
    verdicts, size = row["verdicts"], row.get("repeats") or 1
    calls: list[Mapping[str, Any] | None] = [verdict and {**row, **verdict} for verdict in verdicts]
    return [calls[start : start + size] for start in range(0, len(calls), size)]


def error_to_dict(error: RowError | None) -> dict[str, Any] | None:
    """Return the error as a dictionary for the `error` column, or None if there is no error."""
    return error._asdict() if error is not None else None


def is_retryable(row: Mapping[str, Any]) -> bool:
    """Return True if a row has an error but may succeed when it is computed again."""
    return row["error"] is not None and bool(row["error"]["retryable"])


def read_row_error(value: Mapping[str, Any] | None) -> RowError | None:
    """Return the error in a row's `error` column, or None if the row has a result."""
    return RowError(**value) if value is not None else None


def attach_usage(table: pa.Table, usage: Usage) -> pa.Table:
    """Return the table with the usage of its model calls in the metadata, which is saved in the cell's file."""
    return table.replace_schema_metadata({USAGE_KEY: json.dumps(usage._asdict())})


def read_usage(table: pa.Table) -> Usage | None:
    """Return the usage of model calls that the table's metadata contains, or None if it contains none."""
    found = (table.schema.metadata or {}).get(USAGE_KEY)
    return Usage(**json.loads(found)) if found is not None else None


def attach_kept_count(table: pa.Table, kept: int) -> pa.Table:
    """Return the table with the number of rows that were copied from earlier cells (`kept`) in its metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEPT_KEY: str(kept)})


def read_kept_count(table: pa.Table) -> int:
    """Return the number of rows copied from earlier cells, as stored in the table's metadata."""
    return int((table.schema.metadata or {}).get(KEPT_KEY, 0))


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table with the rows of all tables, and the totals of usage and kept rows in its metadata."""
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables([part.replace_schema_metadata(None) for part in tables])
    usages = [usage for usage in map(read_usage, tables) if usage is not None]
    counted = attach_usage(table, reduce(Usage.plus, usages)) if usages else table
    kept = sum(map(read_kept_count, tables))
    return attach_kept_count(counted, kept) if kept else counted


def count_error_kinds(cell: pa.Table) -> dict[str, int]:
    """Return the number of rows with an error in a cell's table, by kind of error."""
    errors = filter(None, cell.column("error").to_pylist())
    return dict(Counter(error["kind"] for error in errors))


def count_errors(cell: pa.Table, *, retryable_only: bool = False) -> int:
    errors = filter(None, cell.column("error").to_pylist())
    return sum(error["retryable"] or not retryable_only for error in errors)


def is_missing(value: Any) -> bool:
    """Return True if a value is null: None, NaN, or pandas' NA or NaT."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in PANDAS_NULLS


def format_id(value: Any) -> str | None:
    """Return an id as text, without lone surrogates, which no table can contain; None if it is None.

    pandas reads ids in a CSV file as integers, or as floats if some ids are missing, so 7.0 becomes "7".
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.encode(errors="backslashreplace").decode()


def require_unique_columns(found: Sequence[str], read: Iterable[str], where: str) -> None:
    """Raise SourceError if a column in `read` occurs more than once among the columns `found` in the file `where`."""
    twice = [name for name in read if found.count(name) > 1]
    if twice:
        raise SourceError(
            f"{where}: {found.count(twice[0])} columns are called {twice[0]!r}; rename or remove all but one"
        )


def require_columns(found: Iterable[str], required: Iterable[str], where: str, *, key: str = "") -> None:
    """Raise SourceError if the file `where` lacks required columns; `key` is the option that sets their names."""
    have = list(found)
    missing = [name for name in required if name not in have]
    if missing:
        raise SourceError(
            f"{where}: expected column(s) {', '.join(missing)}, found {', '.join(have) or 'none'}; "
            f"rename or add them{f', or correct {key}' if key else ''} (docs/images.md)"
        )


def list_values(values: Any, name: str) -> list[Any]:
    """Return the values of a list, array, pandas Series, Arrow column or iterator in order; ignore a Series' index.

    Raises ConfigError if the values are unordered or have more than one dimension.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return list(values.to_pylist())
    unordered = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable)
    if unordered or getattr(values, "ndim", 1) != 1:
        raise ConfigError(
            f"{name}: expected a list, one-dimensional array, Series or iterator, got a value of type "
            f"{type(values).__name__}"
        )
    return [*values]
