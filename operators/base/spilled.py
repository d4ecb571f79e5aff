"""Keeps columns of numbers in a temporary file, because all of them together may not fit in memory."""

from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ALL_ROWS = slice(None)


class SpilledColumns:
    """Columns of numbers in a temporary file, numbered from 0 in the order in which they were appended."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 (closed when this object is deleted)
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, column: Floats) -> None:
        """Append a column of any length."""
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(column, np.float64).data)
        self._ends.append(self._ends[-1] + len(column))

    def read(self, number: int, rows: slice = ALL_ROWS) -> Floats:
        """Return the column with this number, or only the given `rows` of that column."""
        begin, end, _ = rows.indices(self._ends[number + 1] - self._ends[number])
        self._file.seek(8 * (self._ends[number] + begin))
        return np.frombuffer(self._file.read(8 * max(end - begin, 0)), np.float64)
