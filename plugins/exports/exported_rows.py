"""Scores as an exported table has them: flat, each row with a key of its own and the part that it stands on."""

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

KEY = ("benchmark", "generator", "metric", "row_id")
"""The columns whose values no two rows of a table share."""
_ERROR_COLUMNS = {f"error_{name}": name for name in schemas.ERROR.names}
EXPORTED = pa.schema(
    [
        *schemas.texts("benchmark", "generator", "metric", "row_id", "image_id", "prompt_id"),
        ("score", pa.float64()),
        ("n_questions", pa.int32()),
        ("truncated", pa.bool_()),
        *((column, schemas.ERROR.field(name).type) for column, name in _ERROR_COLUMNS.items()),
        *schemas.texts("run_id", "part"),
    ]
)
"""Scores, with their errors spread into columns.

`row_id` is the image_id. A row that names no image has `missing/` and its prompt's id instead, and the second row of
one name has `#2` after it. `part` is a digest of the file of the run's scores that the row is from, and `run_id` the
run that it was exported from when it was first written.
"""


class PartRows(NamedTuple):
    """A part of a run's scores, ready for a table."""

    name: str
    """What stands in the column `part`."""
    table: pa.Table
    """Schema EXPORTED, further columns after it."""


class RowMaker:
    """Makes the rows of one run, part by part; it remembers eight bytes of each, to tell names that come again."""

    def __init__(self, benchmark: str, run_id: str, columns: Sequence[str] | None) -> None:
        """`columns` are the further ones to take along, None being all."""
        self.benchmark, self.run_id, self.columns = benchmark, run_id, columns
        self._seen: dict[tuple[str, str], list[NDArray[np.uint64]]] = {}

    def make(self, scores: pa.Table, digest: str) -> PartRows:
        """The rows of a part (schema SCORES, further columns after it), whose file has this digest.

        Raises ConfigError where a further column is not there, or is called as one of the table's own.
        """
        further = self._further(scores)
        row_ids, renamed = self._row_ids(scores)
        name = hashlib.sha256(f"{digest}{self.columns}{renamed}".encode()).hexdigest()[:32] if len(scores) else ""
        error = scores.column("error").combine_chunks()
        constant = {"benchmark": self.benchmark, "run_id": self.run_id, "part": name}
        made: dict[str, Any] = {column: pa.repeat(pa.scalar(value), len(scores)) for column, value in constant.items()}
        made |= {column: pc.struct_field(error, source) for column, source in _ERROR_COLUMNS.items()}
        made |= {"row_id": row_ids}
        columns = {column: made.get(column, _column(scores, column)) for column in EXPORTED.names}
        table = pa.table(columns, schema=EXPORTED)
        for column in further:
            values = scores.column(column)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            table = table.append_column(column, values)
        return PartRows(name, table)

    def _further(self, scores: pa.Table) -> Sequence[str]:
        there = [column for column in scores.column_names if column not in schemas.SCORES.names]
        for column in self.columns or ():
            if column not in there:
                raise ConfigError(
                    f"columns: the run has no further column {column!r}; it has {', '.join(there) or 'none'}"
                )
        taken = there if self.columns is None else self.columns
        taken = [column for column in taken if not _is_untyped(scores.schema.field(column).type)]
        if own := [column for column in taken if column in EXPORTED.names]:
            raise ConfigError(
                f"columns: {own[0]!r} is a column of the table's own; name the others, as in columns=[seed]"
            )
        return taken

    def _row_ids(self, scores: pa.Table) -> tuple[pa.Array, list[tuple[int, str]]]:
        """Every row's name, and of those that had come before in its generator and metric the place and new name."""
        missing = pc.binary_join_element_wise("missing", pc.fill_null(scores.column("prompt_id"), ""), "/")
        names = pc.coalesce(scores.column("image_id"), missing).to_numpy(zero_copy_only=False).astype(object)
        renamed: list[tuple[int, str]] = []
        for group, places in _groups(scores):
            seen = self._seen.setdefault(group, [])
            hashes = pd.util.hash_array(names[places], categorize=False)
            again = _known(hashes, seen) | pd.Series(hashes).duplicated().to_numpy()
            _remember(hashes, seen)
            for place in places[again]:
                names[place] = _free_name(str(names[place]), seen)
                renamed.append((int(place), names[place]))
        return pa.array(names, pa.string()), renamed


def _is_untyped(dtype: pa.DataType) -> bool:
    """Return True for columns without any value: the run does not record their type, which a table needs."""
    return bool(pa.types.is_null(dtype) or (pa.types.is_list(dtype) and _is_untyped(dtype.value_type)))


def _column(scores: pa.Table, column: str) -> pa.ChunkedArray | None:
    return scores.column(column) if column in scores.column_names else None


def _groups(scores: pa.Table) -> Iterator[tuple[tuple[str, str], NDArray[np.int64]]]:
    """By generator and metric, the places of its rows."""
    frame = scores.select(["generator", "metric"]).to_pandas()
    for group, places in frame.groupby(["generator", "metric"], sort=False, observed=True).indices.items():
        generator, metric = group
        yield (str(generator), str(metric)), np.asarray(places, np.int64)


def _known(hashes: NDArray[np.uint64], seen: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Which hashes stand in any of the sorted arrays."""
    known = np.zeros(len(hashes), bool)
    for chunk in seen:
        places = np.minimum(np.searchsorted(chunk, hashes), len(chunk) - 1)
        known |= chunk[places] == hashes
    return known


def _remember(hashes: NDArray[np.uint64], seen: list[NDArray[np.uint64]]) -> None:
    """Adds hashes to the sorted arrays, each of which is kept longer than the next, so that they are few."""
    chunk = np.sort(hashes)
    while seen and len(seen[-1]) <= len(chunk):
        chunk = np.sort(np.concatenate([seen.pop(), chunk]), kind="stable")
    seen.append(chunk)


def _free_name(name: str, seen: list[NDArray[np.uint64]]) -> str:
    """The first of `name#2`, `name#3`, ... that no row has; it is taken from then on."""
    number = 2
    while _known(taken := pd.util.hash_array(np.array([f"{name}#{number}"], object), categorize=False), seen)[0]:
        number += 1
    _remember(taken, seen)
    return f"{name}#{number}"
