"""The interface of table formats: list the stored parts, write rows by key, and remove stale rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import Place, first_line


class ExportError(PlumblineError):
    """Raised if scores could not be written to a table."""


class StoredPart(NamedTuple):
    """Number of rows in the table that come from one part of a run's scores."""

    generator: str
    metric: str
    part: str
    rows: int
    unnamed: int
    """Number of rows without an image."""


class ScoreTable(Protocol):
    """A table with the schema EXPORTED and extra columns."""

    @property
    def url(self) -> str:
        """Address of the table."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""

    def stored_parts(self, benchmark: str) -> Sequence[StoredPart]:
        """Count a benchmark's stored rows by part, reading few columns, batch by batch."""

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write the rows of one benchmark in one commit; they replace rows with the same key.

        `fresh` means that the table has no rows for the same generators and metrics. Raise ExportError on failure.
        """

    def remove_unnamed(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Remove the rows without an image from these parts, in one commit."""


class Target(NamedTuple):
    """Where a table is stored: its folder, name and catalog."""

    place: Place
    table: str
    catalog: str | None


OpenTable = Callable[[Target, pa.Schema], ScoreTable]
"""Opens the table or creates it, and adds the columns of the schema that it lacks."""


@contextmanager
def export_errors(url: str) -> Iterator[None]:
    """Convert any exception raised by a format's library to an ExportError that names the table."""
    try:
        yield
    except PlumblineError:
        raise
    except Exception as error:
        raise ExportError(
            f"{url}: {type(error).__name__}: {first_line(error)}; rows that were written are kept: run the same "
            "command again, and if it fails again, export into another table (table=NAME)"
        ) from error


def fit_types(rows: pa.Table, schema: pa.Schema, url: str) -> pa.Table:
    """Return the rows cast to the table's types; raise ExportError if a value cannot be cast.

    An extra column, such as a seed, may have different types in different runs. If the rows lack a column of the table,
    it is null.
    """
    for position, field in enumerate(rows.schema):
        stored = schema.field(field.name).type
        if field.type == stored:
            continue
        try:
            rows = rows.set_column(position, pa.field(field.name, stored), rows.column(position).cast(stored))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ExportError(
                f"{url}: column {field.name!r} has type {stored} in the table and {field.type} in this run "
                f"({first_line(error)}); leave it out by listing the others in columns=[...], or export into another "
                "table (table=NAME)"
            ) from error
    for name in schema.names:
        if name not in rows.column_names:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
    return rows


PART_COLUMNS = ("generator", "metric", "part", "image_id")


def count_parts(batches: Iterable[pa.RecordBatch]) -> list[StoredPart]:
    """Count rows by part, given batches with the columns PART_COLUMNS."""
    rows: Counter[tuple[str, str, str]] = Counter()
    named: Counter[tuple[str, str, str]] = Counter()
    for batch in batches:
        counted = pa.table(batch).group_by(list(PART_COLUMNS[:3]), use_threads=False)
        table = counted.aggregate([("image_id", "count"), ([], "count_all")])
        for *group, with_image, count in zip(*(column.to_pylist() for column in table.columns), strict=True):
            generator, metric, part = group
            rows[generator, metric, part] += count
            named[generator, metric, part] += with_image
    return [StoredPart(*group, count, count - named[group]) for group, count in rows.items()]
