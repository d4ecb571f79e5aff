"""Hugging Face's class labels: columns of integers, with the names of the labels in the schema's metadata."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

METADATA_KEY = b"huggingface"
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def find_labels(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the label names for each column of class labels, or of lists of class labels, by column name."""
    try:
        features = json.loads((schema.metadata or {})[METADATA_KEY])["info"]["features"]
        named = {name: _list_names(feature) for name, feature in features.items() if name in schema.names}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: names for name, names in named.items() if names}


def _list_names(feature: Any) -> list[str]:
    """Return the names of a feature's labels; a list is stored as [feature] or as an object with a `feature`."""
    if isinstance(feature, list):
        return _list_names(feature[0]) if len(feature) == 1 else []
    if not isinstance(feature, Mapping):
        return []
    if feature.get("_type") in ("Sequence", "List", "LargeList"):
        return _list_names(feature.get("feature"))
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return [str(name) for name in names] if isinstance(names, list) else []


def name_labels(rows: Rows, exclude: Collection[str] = ()) -> Rows:
    """Replace numbers with names in all label columns that are not in `exclude`; a missing label becomes null."""
    for column, names in find_labels(rows.schema).items():
        if column not in exclude:
            position = rows.schema.get_field_index(column)
            is_list = pa.types.is_nested(rows.schema.field(column).type)
            named = pa.array(
                [_get_label_name(value, names) for value in rows.column(column).to_pylist()],
                pa.list_(pa.string()) if is_list else pa.string(),
            )
            rows = rows.set_column(position, column, named)
    return rows


def _get_label_name(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_get_label_name(each, names) for each in value]
    known = isinstance(value, int) and 0 <= value < len(names)  # -1 means no label
    return names[value] if known else value if isinstance(value, str) else None
