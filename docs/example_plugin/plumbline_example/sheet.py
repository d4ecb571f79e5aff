"""An example table format: a CSV that can contain a single run."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

from plumbline.plugins.exports.score_table import StoredPart, Target, collect_stored_parts


class Sheet:
    """A CSV table of scores."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.url = str(path)
        self.schema = schema

    def list_stored_parts(self, benchmark: str) -> Sequence[StoredPart]:
        """Return the parts of a run's scores that the table already contains, each with its number of rows."""
        return collect_stored_parts(csv.read_csv(self.path).to_batches()) if self.path.exists() else []

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write the rows as the table's first run; raise NotImplementedError if the table already contains one."""
        if not fresh:
            raise NotImplementedError("a sheet contains a single run; write to another path")
        csv.write_csv(rows, self.path)

    def remove_missing_images(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Raise NotImplementedError; this is never called for a table with a single run."""
        raise NotImplementedError("a sheet contains a single run; write to another path")


def open_table(target: Target, schema: pa.Schema) -> Sheet:
    """Open the table at the target."""
    return Sheet(Path(f"{target.place.path}.{target.table}.csv"), schema)
