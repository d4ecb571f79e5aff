"""Lance, through pylance: a dataset of the table's name, with a row's key in its columns."""

from collections.abc import Mapping, Sequence

import lance
import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.exports.exported_rows import KEY
from plumbline.plugins.exports.score_table import PART_COLUMNS, StoredPart, Target, count_parts, export_errors

S3_OPTIONS = {
    "endpoint_url": "aws_endpoint",
    "region": "aws_region",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
}
"""How Lance calls what an S3 client is given."""


class LanceTable:
    """A dataset of schema EXPORTED with further columns."""

    def __init__(self, dataset: lance.LanceDataset, url: str) -> None:
        self._dataset, self.url = dataset, url

    @property
    def schema(self) -> pa.Schema:
        """The dataset's columns with their types."""
        return self._dataset.schema

    def stored_parts(self, benchmark: str) -> list[StoredPart]:
        """What stands of a benchmark."""
        with export_errors(self.url):
            where = f"benchmark = {_quoted(benchmark)}"
            return count_parts(self._dataset.scanner(columns=list(PART_COLUMNS), filter=where).to_batches())

    def write(self, rows: pa.Table, *, fresh: bool) -> None:
        """Takes rows in by one version of the dataset."""
        with export_errors(self.url):
            if fresh:
                self._dataset.insert(rows)
                return
            merge = self._dataset.merge_insert(list(KEY)).when_matched_update_all().when_not_matched_insert_all()
            merge.execute(rows)

    def remove_unnamed(self, benchmark: str, stale: Sequence[StoredPart]) -> None:
        """Removes rows by one version of the dataset."""
        with export_errors(self.url):
            of_parts = " OR ".join(_of_part(part) for part in stale)
            self._dataset.delete(f"benchmark = {_quoted(benchmark)} AND image_id IS NULL AND ({of_parts})")


def _of_part(part: StoredPart) -> str:
    columns = {"generator": part.generator, "metric": part.metric, "part": part.part}
    return f"({' AND '.join(f'{name} = {_quoted(value)}' for name, value in columns.items())})"


def _quoted(text: str) -> str:
    """Text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def open_table(target: Target, schema: pa.Schema) -> LanceTable:
    """The dataset; it is made where there is none, and gets the columns that it lacks."""
    if target.catalog is not None:
        raise ConfigError(f"catalog: format=lance has none; leave out catalog={target.catalog}")
    url = f"{target.place.url}/{target.table}.lance"
    options = _s3_options(target) if url.startswith("s3://") else None  # of other clouds it reads the same variables
    with export_errors(url):
        if not (target.place / f"{target.table}.lance").exists():
            return LanceTable(lance.write_dataset(schema.empty_table(), url, storage_options=options), url)
        dataset = lance.dataset(url, storage_options=options)
        if untyped := [name for name in schema.names if _is_untyped(dataset.schema, name)]:
            dataset.drop_columns(untyped)
        lacking = [field for field in schema if field.name not in dataset.schema.names]
        if lacking:
            dataset.add_columns(pa.schema(lacking))
        return LanceTable(dataset, url)


def _is_untyped(stored: pa.Schema, name: str) -> bool:
    """Return True for a column of a dataset that has no value and no type, as an earlier export made it."""
    return name in stored.names and pa.types.is_null(stored.field(name).type)


def _s3_options(target: Target) -> Mapping[str, str]:
    from plumbline.pipelines.base.filesystems.s3 import s3_settings  # takes a second, and only s3:// needs it

    settings = s3_settings(target.place.storage)
    options = {theirs: settings[name] for name, theirs in S3_OPTIONS.items() if name in settings}
    return {**options, "allow_http": str(settings.get("endpoint_url", "").startswith("http://")).lower()}
