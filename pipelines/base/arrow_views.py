"""Casts Arrow's view types, which Polars may use for strings and bytes, to plain types.

Arrow cannot select rows from arrays of views.
"""

from typing import TypeVar

import pyarrow as pa

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def remove_views(rows: Rows) -> Rows:
    """Return the rows with view types replaced by plain strings and bytes, also within lists and structs."""
    schema = remove_views_from_schema(rows.schema)
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def remove_views_from_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_replace_views(field) for field in schema], schema.metadata)


def _replace_views(field: pa.Field) -> pa.Field:
    dtype = field.type
    if dtype == pa.string_view():
        return field.with_type(pa.large_string())  # 64-bit offsets, because an array of views may exceed 2 GB
    if dtype == pa.binary_view():
        return field.with_type(pa.large_binary())
    if pa.types.is_struct(dtype):
        return field.with_type(pa.struct([_replace_views(inner) for inner in dtype]))
    if pa.types.is_list(dtype):
        return field.with_type(pa.list_(_replace_views(dtype.value_field)))
    if pa.types.is_large_list(dtype):
        return field.with_type(pa.large_list(_replace_views(dtype.value_field)))
    return field
