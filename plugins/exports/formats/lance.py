"""Lance datasets (pylance), one for each table."""

from collections.abc import Mapping, Sequence

import lance
import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.exports.exported_rows import KEY_COLUMNS
from plumbline.plugins.exports.score_table import PART_COLUMNS, StoredPart, Target, collect_stored_parts, convert_errors

S3_OPTIONS = {
    "endpoint_url": "aws_endpoint",
    "region": "aws_region",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
}
"""Names of S3 settings in Lance, by their names in our S3 client."""


class LanceTable:
    """A Lance dataset with the schema EXPORTED_ROWS_SCHEMA and extra columns."""

    def __init__(self, dataset: lance.LanceDataset, url: str) -> None:
        self._dataset, self.url = dataset, url

    @property
    def schema(self) -> pa.Schema:
        """Columns of the dataset."""
        return self._dataset.schema

    def list_stored_parts(self, benchmark: str) -> list[StoredPart]:
        """Return the parts of a benchmark's scores that the dataset contains, with the number of rows of each part."""
        with convert_errors(self.url):
            where = f"benchmark = {_quote_string(benchmark)}"
            return collect_stored_parts(self._dataset.scanner(columns=list(PART_COLUMNS), filter=where).to_batches())

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Write rows as one version of the dataset; unless `fresh`, they replace rows with the same key."""
        with convert_errors(self.url):
            if fresh:
                self._dataset.insert(rows)
                return
            merge = (
                self._dataset.merge_insert(list(KEY_COLUMNS)).when_matched_update_all().when_not_matched_insert_all()
            )
            merge.execute(rows)

    def remove_missing_images(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Remove the rows for missing images from these parts, in one new version of the dataset."""
        with convert_errors(self.url):
            in_parts = " OR ".join(_make_part_filter(part) for part in stale)
            self._dataset.delete(f"benchmark = {_quote_string(benchmark)} AND image_id IS NULL AND ({in_parts})")


def _make_part_filter(part: StoredPart) -> str:
    columns = {"generator": part.generator, "metric": part.metric, "part": part.part}
    return f"({' AND '.join(f'{name} = {_quote_string(value)}' for name, value in columns.items())})"


def _quote_string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def open_table(target: Target, schema: pa.Schema) -> LanceTable:
    """Open the dataset, or create it if it does not exist, and add the columns of the schema that it lacks.

    Columns that have no type in the dataset are dropped and added with the schema's type. Raises ConfigError if a
    catalog is configured, and ExportError if the dataset cannot be opened or changed.
    """
    if target.catalog is not None:
        raise ConfigError(f"catalog: format=lance has no catalog; leave out catalog={target.catalog}")
    url = f"{target.place.url}/{target.table}.lance"
    options = (
        _list_s3_options(target) if url.startswith("s3://") else None
    )  # Lance reads the variables of other clouds itself
    with convert_errors(url):
        if not (target.place / f"{target.table}.lance").exists():
            return LanceTable(lance.write_dataset(schema.empty_table(), url, storage_options=options), url)
        dataset = lance.dataset(url, storage_options=options)
        if untyped := [name for name in schema.names if _is_untyped(dataset.schema, name)]:
            dataset.drop_columns(untyped)
        missing = [field for field in schema if field.name not in dataset.schema.names]
        if missing:
            dataset.add_columns(pa.schema(missing))
        return LanceTable(dataset, url)


def _is_untyped(stored: pa.Schema, name: str) -> bool:
    """Return True if an earlier export created the column without values, and therefore without a type."""
    return name in stored.names and pa.types.is_null(stored.field(name).type)


def _list_s3_options(target: Target) -> Mapping[str, str]:
    from plumbline.pipelines.base.filesystems.s3 import collect_s3_settings  # takes a second, and only s3:// needs it

    settings = collect_s3_settings(target.place.storage)
    options = {theirs: settings[name] for name, theirs in S3_OPTIONS.items() if name in settings}
    return {**options, "allow_http": str(settings.get("endpoint_url", "").startswith("http://")).lower()}
