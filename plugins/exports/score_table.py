"""What a format does for an export: say what stands in its table, take rows in by their key, remove what is stale."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import Place, first_line


class ExportError(PlumblineError):
    """Scores cannot be written into a table."""


class StoredPart(NamedTuple):
    """Rows of a table that are from the same part of a run's scores."""

    generator: str
    metric: str
    part: str
    rows: int
    unnamed: int
    """Those of them that name no image."""


class ScoreTable(Protocol):
    """A table of schema EXPORTED with further columns, in some format."""

    @property
    def url(self) -> str:
        """Where it stands."""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns with their types."""

    def stored_parts(self, benchmark: str) -> Sequence[StoredPart]:
        """What stands in it of a benchmark, read from a few columns, a batch at a time."""

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Takes rows of one benchmark in, in place of those of the same key, by one commit.

        `fresh` says that the table has no row of their generators and metrics. Raises ExportError.
        """

    def remove_unnamed(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Removes the rows of these parts that name no image, by one commit."""


class Target(NamedTuple):
    """Where a table is to be."""

    place: Place
    table: str
    catalog: str | None


OpenTable = Callable[[Target, pa.Schema], ScoreTable]
"""Opens a table, which is made where there is none, and gets the columns of the schema that it lacks."""


@contextmanager
def export_errors(url: str) -> Iterator[None]:
    """Turns whatever a format's library raises into an ExportError that names the table."""
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
    """Return rows with the columns of a table in its types; raise ExportError if some value has no such form.

    Another run may have a further column, such as a seed, as another type, or not at all: then it is null.
    """
    for position, field in enumerate(rows.schema):
        stored = schema.field(field.name).type
        if field.type == stored:
            continue
        try:
            rows = rows.set_column(position, pa.field(field.name, stored), rows.column(position).cast(stored))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ExportError(
                f"{url}: the column {field.name!r} holds {stored} in the table and {field.type} in this run "
                f"({first_line(error)}); leave it out by naming the others in columns=[...], or export into another "
                "table (table=NAME)"
            ) from error
    for name in schema.names:
        if name not in rows.column_names:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
    return rows


PART_COLUMNS = ("generator", "metric", "part", "image_id")


def count_parts(batches: Iterable[pa.RecordBatch]) -> list[StoredPart]:
    """The parts of batches with the columns PART_COLUMNS."""
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
