"""Conversion of sequences that callers of the Python API pass."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError


def list_values(values: Any, name: str) -> list[Any]:
    """Return the values of a list, array, pandas Series, column or iterator in order; an index is ignored.

    Raise ConfigError for values without an order or with several dimensions.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return list(values.to_pylist())
    unordered = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable)
    if unordered or getattr(values, "ndim", 1) != 1:
        raise ConfigError(
            f"{name}: expected a list, array of one dimension, Series or iterator, got a value of type "
            f"{type(values).__name__}"
        )
    return [*values]
