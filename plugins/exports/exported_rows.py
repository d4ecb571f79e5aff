"""Makes the rows of exported tables. Each row is flat, and has a unique key and a digest of its scores file."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError

KEY_COLUMNS = ("benchmark", "generator", "metric", "row_id")
"""Columns of a table's unique key."""
_ERROR_COLUMNS = {f"error_{name}": name for name in schemas.ERROR.names}
EXPORTED_ROWS_SCHEMA = pa.schema(
    [
        *schemas.texts("benchmark", "generator", "metric", "row_id", "image_id", "prompt_id"),
        ("score", pa.float64()),
        ("n_questions", pa.int32()),
        ("truncated", pa.bool_()),
        *((column, schemas.ERROR.field(name).type) for column, name in _ERROR_COLUMNS.items()),
        *schemas.texts("run_id", "part"),
    ]
)
"""Schema of exported scores, with one column per field of an error.

`row_id` is the image_id, or `missing/` and the prompt_id if the image is missing. Repeated ids end in `#2`, `#3` and so
on. `part` is a digest of the row's scores file. `run_id` is the run that first exported the row.
"""


class PartRows(NamedTuple):
    """Rows of one file of a run's scores, ready to be written."""

    name: str
    """Value of the rows' `part` column."""
    table: pa.Table
    """Rows with the schema EXPORTED_ROWS_SCHEMA, followed by extra columns."""


class RowMaker:
    """Converter that turns a run's scores into rows, part by part.

    It stores eight bytes per row to recognize repeated ids.
    """

    def __init__(self, benchmark: str, run_id: str, columns: Sequence[str] | None) -> None:
        """Prepare the conversion. `columns` lists the extra columns to keep; None keeps all."""
        self.benchmark, self.run_id, self.columns = benchmark, run_id, columns
        self._seen: dict[tuple[str, str], list[NDArray[np.uint64]]] = {}

    def make(self, scores: pa.Table, digest: str) -> PartRows:
        """Return the rows of a part of the scores. `digest` is the digest of the part's file.

        The scores have the schema SCORES, followed by extra columns. Raises ConfigError if an extra column is missing,
        or has the same name as one of the table's own columns.
        """
        extra = self._select_extra_columns(scores)
        row_ids, renamed = self._make_row_ids(scores)
        name = hashlib.sha256(f"{digest}{self.columns}{renamed}".encode()).hexdigest()[:32] if len(scores) else ""
        error = scores.column("error").combine_chunks()
        constant = {"benchmark": self.benchmark, "run_id": self.run_id, "part": name}
        made: dict[str, Any] = {column: pa.repeat(pa.scalar(value), len(scores)) for column, value in constant.items()}
        made |= {column: pc.struct_field(error, source) for column, source in _ERROR_COLUMNS.items()}
        made |= {"row_id": row_ids}
        columns = {column: made.get(column, _get_column(scores, column)) for column in EXPORTED_ROWS_SCHEMA.names}
        table = pa.table(columns, schema=EXPORTED_ROWS_SCHEMA)
        for column in extra:
            values = scores.column(column)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            table = table.append_column(column, values)
        return PartRows(name, table)

    def _select_extra_columns(self, scores: pa.Table) -> Sequence[str]:
        available = [column for column in scores.column_names if column not in schemas.SCORES.names]
        for column in self.columns or ():
            if column not in available:
                raise ConfigError(
                    f"columns: the run has no extra column {column!r}; its extra columns are "
                    f"{', '.join(available) or 'none'}"
                )
        kept = available if self.columns is None else self.columns
        kept = [column for column in kept if not _is_untyped(scores.schema.field(column).type)]
        if own := [column for column in kept if column in EXPORTED_ROWS_SCHEMA.names]:
            raise ConfigError(
                f"columns: {own[0]!r} is one of the table's own columns; list only others, as in columns=[seed]"
            )
        return kept

    def _make_row_ids(self, scores: pa.Table) -> tuple[pa.Array, list[tuple[int, str]]]:
        """Return the id of each row, and the indices and new ids of rows with a repeated id."""
        missing = pc.binary_join_element_wise("missing", pc.fill_null(scores.column("prompt_id"), ""), "/")
        names = pc.coalesce(scores.column("image_id"), missing).to_numpy(zero_copy_only=False).astype(object)
        renamed: list[tuple[int, str]] = []
        for group, indices in _group_rows(scores):
            seen = self._seen.setdefault(group, [])
            hashes = pd.util.hash_array(names[indices], categorize=False)
            again = _find_seen_hashes(hashes, seen) | pd.Series(hashes).duplicated().to_numpy()
            _remember_hashes(hashes, seen)
            for index in indices[again]:
                names[index] = _make_unique(str(names[index]), seen)
                renamed.append((int(index), names[index]))
        return pa.array(names, pa.string()), renamed


def _is_untyped(dtype: pa.DataType) -> bool:
    """Return True if a column has no values, and therefore no type. Such a column cannot be part of a table."""
    return bool(pa.types.is_null(dtype) or (pa.types.is_list(dtype) and _is_untyped(dtype.value_type)))


def _get_column(scores: pa.Table, column: str) -> pa.ChunkedArray | None:
    return scores.column(column) if column in scores.column_names else None


def _group_rows(scores: pa.Table) -> Iterator[tuple[tuple[str, str], NDArray[np.int64]]]:
    frame = scores.select(["generator", "metric"]).to_pandas()
    for group, indices in frame.groupby(["generator", "metric"], sort=False, observed=True).indices.items():
        generator, metric = group
        yield (str(generator), str(metric)), np.asarray(indices, np.int64)


def _find_seen_hashes(hashes: NDArray[np.uint64], seen: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Return an array that is True for each hash that is in one of the sorted arrays."""
    known = np.zeros(len(hashes), bool)
    for chunk in seen:
        indices = np.minimum(np.searchsorted(chunk, hashes), len(chunk) - 1)
        known |= chunk[indices] == hashes
    return known


def _remember_hashes(hashes: NDArray[np.uint64], seen: list[NDArray[np.uint64]]) -> None:
    """Append the hashes to `seen` as a sorted array.

    While the last array in `seen` is at most as long as the new array, the two are merged. The arrays therefore become
    shorter from first to last, so there are only a few to search.
    """
    chunk = np.sort(hashes)
    while seen and len(seen[-1]) <= len(chunk):
        chunk = np.sort(np.concatenate([seen.pop(), chunk]), kind="stable")
    seen.append(chunk)


def _make_unique(name: str, seen: list[NDArray[np.uint64]]) -> str:
    """Return the first of `name#2`, `name#3`, ... that is still unused, and remember it."""
    number = 2
    while _find_seen_hashes(
        digest := pd.util.hash_array(np.array([f"{name}#{number}"], object), categorize=False), seen
    )[0]:
        number += 1
    _remember_hashes(digest, seen)
    return f"{name}#{number}"
