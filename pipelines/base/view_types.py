"""Casts from Arrow's view types: Polars may write texts and bytes as views, and Arrow cannot select rows of views."""

from typing import TypeVar

import pyarrow as pa

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def without_views(rows: Rows) -> Rows:
    """Return the rows with views of texts and bytes, also within lists and structs, as plain texts and bytes."""
    schema = schema_without_views(rows.schema)
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `without_views`."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_without_views(field.type))


def _without_views(dtype: pa.DataType) -> pa.DataType:
    """Return a type without views; with 64-bit offsets, because a view's array may exceed 2 GB."""
    if dtype == pa.string_view():
        return pa.large_string()
    if dtype == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_struct(dtype):
        return pa.struct([_plain_field(field) for field in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(_plain_field(dtype.value_field))
    if pa.types.is_large_list(dtype):
        return pa.large_list(_plain_field(dtype.value_field))
    return dtype
