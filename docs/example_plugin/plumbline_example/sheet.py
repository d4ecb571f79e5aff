"""A format of tables: a CSV that takes one run."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

from plumbline.plugins.exports.score_table import StoredPart, Target, count_parts


class Sheet:
    """The table."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.url = str(path)
        self.schema = schema

    def stored_parts(self, benchmark: str) -> Sequence[StoredPart]:
        """Count the rows of each part that the table has already."""
        return count_parts(csv.read_csv(self.path).to_batches()) if self.path.exists() else []

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write the first run and refuse another."""
        if not fresh:
            raise NotImplementedError("a sheet takes one run")
        csv.write_csv(rows, self.path)

    def remove_unnamed(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Never called for a table of one run."""
        raise NotImplementedError("a sheet takes one run")


def open_table(target: Target, schema: pa.Schema) -> Sheet:
    """Open the table at the target."""
    return Sheet(Path(f"{target.place.path}.{target.table}.csv"), schema)
