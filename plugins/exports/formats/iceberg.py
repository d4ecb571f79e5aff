"""Iceberg tables in a SQL or REST catalog (PyIceberg), partitioned by benchmark, metric and generator."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, IsNull, LessThanOrEqual
from pyiceberg.table import Table

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.exports.score_table import PART_COLUMNS, StoredPart, Target, collect_stored_parts, convert_errors

CATALOG_NAMESPACE = "plumbline"
PARTITION_COLUMNS = ("benchmark", "metric", "generator")
WIDENABLE_TYPES = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
S3_PROPERTIES = {
    "endpoint_url": "endpoint",
    "region": "region",
    "key": "access-key-id",
    "secret": "secret-access-key",
    "token": "session-token",
}
"""Names of S3 settings in PyIceberg, by their names in our S3 client."""


class IcebergTable:
    """An Iceberg table with the schema EXPORTED_ROWS_SCHEMA and extra columns.

    Rows are replaced by rewriting their parts, because this removes whole files. Deleting rows by row_id would compare
    every row with every row_id.
    """

    def __init__(self, table: Table, url: str) -> None:
        self._table, self.url = table, url

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return self._table.schema().as_arrow()

    def list_stored_parts(self, benchmark: str) -> list[StoredPart]:
        """Return the parts of a benchmark's scores that the table contains, with the number of rows of each part."""
        with convert_errors(self.url):
            scan = self._table.scan(row_filter=EqualTo("benchmark", benchmark), selected_fields=PART_COLUMNS)
            return collect_stored_parts(scan.to_arrow_batch_reader())

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write rows in one commit; unless `fresh`, they replace rows with the same key."""
        with convert_errors(self.url), self._table.transaction() as transaction:
            if not fresh:
                for group in _split_groups(rows):
                    old, kept = self._find_overlap(group)
                    if old is not None:
                        transaction.delete(old)
                        rows = pa.concat_tables([rows, kept.select(rows.column_names).cast(rows.schema)])
            transaction.append(rows)

    def _find_overlap(self, rows: pa.Table) -> tuple[BooleanExpression | None, pa.Table]:
        """Return a filter for the stored parts that contain keys of these rows, and all other rows in these parts.

        The filter is None, and the table empty, if no stored part contains any of the keys.
        """
        group = And(*(EqualTo(name, rows.column(name)[0].as_py()) for name in PARTITION_COLUMNS))
        ends = pc.min_max(rows.column("row_id")).as_py()
        id_range = And(group, GreaterThanOrEqual("row_id", ends["min"]), LessThanOrEqual("row_id", ends["max"]))
        row_ids = rows.column("row_id").combine_chunks()
        parts: set[str] = set()
        for batch in self._table.scan(row_filter=id_range, selected_fields=("row_id", "part")).to_arrow_batch_reader():
            parts.update(batch.filter(pc.is_in(batch.column("row_id"), row_ids)).column("part").to_pylist())
        if not parts:
            return None, rows.slice(0, 0)
        old = And(group, In("part", parts))
        stored = self._table.scan(row_filter=old).to_arrow()
        return old, stored.filter(pc.invert(pc.is_in(stored.column("row_id"), row_ids)))

    def remove_missing_images(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Remove the rows for missing images from these parts, in one commit."""
        with convert_errors(self.url), self._table.transaction() as transaction:
            for part in stale:
                in_group = And(EqualTo("benchmark", benchmark), EqualTo("metric", part.metric))
                in_part = And(EqualTo("generator", part.generator), EqualTo("part", part.part), IsNull("image_id"))
                transaction.delete(And(in_group, in_part))


def _split_groups(rows: pa.Table) -> list[pa.Table]:
    pairs = rows.select(["generator", "metric"]).group_by(["generator", "metric"], use_threads=False).aggregate([])
    return [
        rows.filter(pc.and_(pc.equal(rows.column("generator"), generator), pc.equal(rows.column("metric"), metric)))
        for generator, metric in zip(*(column.to_pylist() for column in pairs.columns), strict=True)
    ]


def open_table(target: Target, schema: pa.Schema) -> IcebergTable:
    """Open the table, or create it if it does not exist.

    Missing columns of the schema are added, and columns with a narrower type are widened.
    """
    with convert_errors(target.place.url):
        catalog = _open_catalog(target)
        catalog.create_namespace_if_not_exists(CATALOG_NAMESPACE)
        name = f"{CATALOG_NAMESPACE}.{target.table}"
        if not catalog.table_exists(name):
            return IcebergTable(_create_table(catalog, name, schema), target.place.url)
        table = catalog.load_table(name)
        stored = table.schema().as_arrow()
        with table.update_schema() as update:
            update.union_by_name(pa.schema([field for field in schema if _is_new_or_wider(stored, field)]))
        return IcebergTable(table, target.place.url)


def _is_new_or_wider(stored: pa.Schema, field: pa.Field) -> bool:
    """Return True if the table lacks the column, or has the column with a narrower type that Iceberg can widen."""
    return field.name not in stored.names or (stored.field(field.name).type, field.type) in WIDENABLE_TYPES


def _create_table(catalog: Catalog, name: str, schema: pa.Schema) -> Table:
    with catalog.create_table_transaction(name, schema=schema) as transaction, transaction.update_spec() as spec:
        for column in PARTITION_COLUMNS:
            spec.add_identity(column)
    return catalog.load_table(name)


def _open_catalog(target: Target) -> Catalog:
    local = target.place.is_local
    if not local and not target.place.url.startswith("s3://"):
        raise ConfigError(
            f"output {target.place.url}: expected a local folder or an s3:// address, because Iceberg tables can "
            "only be written there; choose another output"
        )
    if target.catalog is None and not local:
        raise ConfigError(
            f"catalog: expected a catalog for a table in {target.place.url}, got none; set one, such as "
            "catalog=sqlite:////absolute/path.db"
        )
    if local:
        target.place.fs.makedirs(target.place.path, exist_ok=True)
    warehouse = f"file://{target.place.path}" if local else target.place.url
    uri = target.catalog or f"sqlite:///{target.place / 'catalog.db'}"
    properties = {"type": "rest" if uri.startswith("http") else "sql", "uri": uri, "warehouse": warehouse}
    return load_catalog(CATALOG_NAMESPACE, **properties, **({} if local else _list_s3_properties(target)))


def _list_s3_properties(target: Target) -> Mapping[str, str]:
    from plumbline.pipelines.base.filesystems.s3 import collect_s3_settings  # takes a second, and only s3:// needs it

    settings = collect_s3_settings(target.place.storage)
    return {f"s3.{theirs}": settings[name] for name, theirs in S3_PROPERTIES.items() if name in settings}
