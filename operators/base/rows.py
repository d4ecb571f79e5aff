"""The few ways of building rows that fit their schema, and what a table's metadata says of them."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.base.usage import Usage

USAGE = b"usage"
KEPT = b"kept"
PANDAS_NULLS = ("NAType", "NaTType")
"""Types of pandas' nulls, by name: to import pandas would slow down the start of workers."""


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as a table of exactly this schema; absent columns are null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def basis_of(*parts: str) -> str:
    """The digest that stands in a row's `basis`."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns that it lacks, as nulls."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def per_image(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row of a table over images, such as ANSWERS or SIMILARITIES, as one row for each of its images."""
    for column in ("statistics", "comparisons", "values"):
        if column in row:
            return [{**row, **of_image} for of_image in row[column]]
    images = row.get("images")
    if images is None:
        return [row]
    if isinstance(images, list):
        return [{**row, "similarity": similarity} for similarity in images]
    answers = row["answers"]
    size = len(answers) // images
    if size == 0:
        return [row]
    return [{**row, "answers": answers[first : first + size]} for first in range(0, len(answers), size)]


def per_ask(row: Mapping[str, Any]) -> list[list[Mapping[str, Any] | None]]:
    """A row of a table over images as one list for each of its images: of a judge's verdicts, one row for each time
    that it was asked, None where its reply could not be read.
    """
    if "verdicts" not in row:
        return [[image] for image in per_image(row)]
    verdicts, size = row["verdicts"], row.get("repeats") or 1
    asks: list[Mapping[str, Any] | None] = [verdict and {**row, **verdict} for verdict in verdicts]
    return [asks[first : first + size] for first in range(0, len(asks), size)]


def error_value(error: RowError | None) -> dict[str, Any] | None:
    """The error as the value of an `error` column."""
    return error._asdict() if error is not None else None


def may_pass(row: Mapping[str, Any]) -> bool:
    """Whether a row has an error that another try may not have."""
    return row["error"] is not None and bool(row["error"]["retryable"])


def row_error(value: Mapping[str, Any] | None) -> RowError | None:
    """The error stored in a row's `error` column, or None where all went well."""
    return RowError(**value) if value is not None else None


def with_usage(table: pa.Table, usage: Usage) -> pa.Table:
    """The table with what its model calls took in its metadata, which a cell's file keeps."""
    return table.replace_schema_metadata({USAGE: json.dumps(usage._asdict())})


def usage_of(table: pa.Table) -> Usage | None:
    """What a table's model calls took, where it says so."""
    found = (table.schema.metadata or {}).get(USAGE)
    return Usage(**json.loads(found)) if found is not None else None


def with_kept(table: pa.Table, kept: int) -> pa.Table:
    """The table with the number of its rows that earlier cells had, in its metadata beside what stands there."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEPT: str(kept)})


def kept_of(table: pa.Table) -> int:
    """How many rows of a table earlier cells had, where it says so."""
    return int((table.schema.metadata or {}).get(KEPT, 0))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables that were made one after the other, with what their calls took and how many were kept."""
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables([part.replace_schema_metadata(None) for part in tables])
    usages = [usage for usage in map(usage_of, tables) if usage is not None]
    counted = with_usage(table, reduce(Usage.plus, usages)) if usages else table
    kept = sum(map(kept_of, tables))
    return with_kept(counted, kept) if kept else counted


def error_kinds(cell: pa.Table) -> dict[str, int]:
    """How many rows of a cell carry an error, by its kind."""
    errors = cell.column("error").to_pylist()
    return dict(Counter(error["kind"] for error in errors if error is not None))


def count_errors(cell: pa.Table, *, retryable_only: bool = False) -> int:
    """How many rows of a cell carry an error."""
    errors = cell.column("error").to_pylist()
    return sum(1 for error in errors if error is not None and (error["retryable"] or not retryable_only))


def is_missing(value: Any) -> bool:
    """Return True if a value is null: None, NaN, or what pandas writes instead of them, NA and NaT."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in PANDAS_NULLS


def require_once(found: Sequence[str], read: Iterable[str], where: str) -> None:
    """Raises SourceError naming the file and the first column that is read and stands in it more than once."""
    twice = [name for name in read if found.count(name) > 1]
    if twice:
        raise SourceError(
            f"{where}: {found.count(twice[0])} columns are called {twice[0]!r}; rename or remove all but one"
        )


def require_columns(found: Iterable[str], required: Iterable[str], where: str, *, key: str = "") -> None:
    """Raises SourceError naming the file, the columns it lacks and the config key that says how they are called."""
    have = list(found)
    missing = [name for name in required if name not in have]
    if missing:
        raise SourceError(
            f"{where}: expected column(s) {', '.join(missing)}, found {', '.join(have) or 'none'}; "
            f"rename or add them{f', or correct {key}' if key else ''} (docs/images.md)"
        )
