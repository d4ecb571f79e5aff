"""Interface of table formats: count stored rows by part, write rows by key, and remove rows for missing images."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import Place, get_first_line


class ExportError(PlumblineError):
    """Raised if scores cannot be written to a table."""


class StoredPart(NamedTuple):
    """A part of a run's scores, and the number of its rows in the table."""

    generator: str
    metric: str
    part: str
    rows: int
    missing: int
    """Number of rows for missing images."""


class ScoreTable(Protocol):
    """A table to which scores are exported, with the columns of EXPORTED_ROWS_SCHEMA and extra columns."""

    @property
    def url(self) -> str:
        """Address of the table."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""

    def list_stored_parts(self, benchmark: str) -> Sequence[StoredPart]:
        """Return the stored parts of a benchmark with their row counts; read only PART_COLUMNS, in batches."""

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write the rows of one benchmark in one commit. They replace rows with the same key.

        If `fresh`, the table has no rows for the same generators and metrics. Raises ExportError on failure.
        """

    def remove_missing_images(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Remove the rows for missing images from these parts, in one commit."""


class Target(NamedTuple):
    """Location of a table: its folder, name and catalog."""

    place: Place
    table: str
    catalog: str | None


OpenTable = Callable[[Target, pa.Schema], ScoreTable]
"""Function that opens or creates the table, and adds missing columns of the schema."""


@contextmanager
def convert_errors(url: str) -> Iterator[None]:
    """Inside the context, convert any exception raised by a format's library to an ExportError that names the table."""
    try:
        yield
    except PlumblineError:
        raise
    except Exception as error:
        raise ExportError(
            f"{url}: {type(error).__name__}: {get_first_line(error)}; rows that were already written are kept; run the "
            "same command again, and if it fails again, export to another table (table=NAME)"
        ) from error


def cast_to_schema(rows: pa.Table, schema: pa.Schema, url: str) -> pa.Table:
    """Return the rows with the types of the table's columns; raise ExportError if a value cannot be cast.

    An extra column, such as a seed, may have different types in different runs. Columns that the rows lack are null.
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
                f"({get_first_line(error)}); leave it out by listing the other columns in columns=[...], or export to "
                "another table (table=NAME)"
            ) from error
    for name in schema.names:
        if name not in rows.column_names:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
    return rows


PART_COLUMNS = ("generator", "metric", "part", "image_id")


def collect_stored_parts(batches: Iterable[pa.RecordBatch]) -> list[StoredPart]:
    """Return the parts that occur in the rows, each with its number of rows and its number of rows for missing images.

    The batches have the columns PART_COLUMNS.
    """
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
