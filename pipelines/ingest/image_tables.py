"""Parquet and Arrow tables that contain images, as in published datasets: one image per row, or several to compare.

An image cell contains bytes, Hugging Face's `{bytes, path}`, or a path. Rows with numbered columns (`jpg_0` and
`model_0`, `jpg_1` and `model_1`, as in Pick-a-Pic) have one image per number.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.generation_settings import read_field_settings
from plumbline.pipelines.base.arrow_views import remove_views, remove_views_from_schema
from plumbline.pipelines.base.hugging_face_labels import find_labels, name_labels
from plumbline.pipelines.base.storage import Place, convert_read_errors, get_first_line
from plumbline.pipelines.base.tables import DAMAGED_TABLE, Refused, Rejection, escape_bytes
from plumbline.pipelines.ingest.files import read_image
from plumbline.pipelines.ingest.image_folders import list_image_folder
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest_output import open_for_arrow
from plumbline.pipelines.ingest.input_rows import (
    describe_column_origins,
    is_outside_roots,
    make_candidate,
    make_relative,
    read_known_ids,
    require_input_columns,
    resolve_link_roots,
)
from plumbline.pipelines.ingest.sample_files import ImageSample, SampleFile, SampleSource, remove_ending
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_column_names
from plumbline.pipelines.sources.origins import Origins
from plumbline.pipelines.sources.shards import BINARY_TYPES, is_table

TABLE_SUFFIXES = (".parquet", ".arrow")
ROWS_AT_ONCE = 16
EMBEDDED_COLUMNS = ("image", "jpg", "png", "webp")
"""Usual names of a column with embedded images, which takes precedence over a column of paths."""
NUMBERED_COLUMN_TEMPLATES = {"image": ("jpg_{}", "image_{}", "png_{}"), "generator": ("model_{}", "generator_{}")}
"""Patterns of column names for rows with several images, which are counted from 0."""


class ImageTableSource(SampleSource):
    def read(self, file: SampleFile) -> Iterator[ImageSample | Rejection]:
        """Yield a table's images in order. A bad row is rejected on its own; rows after a damaged part are lost."""
        line = 0
        try:
            with _open_table(file.place, file.size) as (schema, batches):
                images_of_row = _list_columns_by_image(schema.names, self.config)
                others = _list_other_columns(schema, images_of_row)
                for batch in batches:
                    batch.validate(full=True)
                    for row in name_labels(batch).to_pylist():
                        line += 1
                        for index, names in enumerate(images_of_row):
                            name = f"{file.name}/{line}" + (f"-{index}" if len(images_of_row) > 1 else "")
                            yield self._read_sample(file, row, line, names, name, others)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            remedy = "it may be truncated: write or download it again"
            message = f"not readable after row {line} ({get_first_line(error)}): all later rows are lost; {remedy}"
            yield Refused(DAMAGED_TABLE, message).to_rejection(file.place.url)

    def _read_sample(
        self,
        file: SampleFile,
        row: Mapping[str, Any],
        line: int,
        names: InputColumnsConfig,
        default_id: str,
        others: Sequence[str],
    ) -> ImageSample | Rejection:
        try:
            candidate = make_candidate(
                row,
                names,
                file=file.place.url,
                line=line,
                generator=self.config.generator,
                default_id=default_id,
                extras={"sample": json.dumps({key: row[key] for key in others}, ensure_ascii=False, default=str)},
            )
            image = _read_image_cell(row[names.image or ""], file, self.config)
            source = row.get(names.source or "")
            sources = []
            for cell in source if isinstance(source, list) else [source]:
                with suppress(Refused):  # a missing source fails the metrics that need it, and not the row
                    sources.append(_read_image_cell(cell, file, self.config))
            return ImageSample(candidate, image, sources, read_field_settings(row))
        except Refused as refused:
            return refused.to_rejection(
                file.place.url, line, **read_known_ids(row, names, self.config.generator, default_id)
            )

    def describe(self, file: SampleFile) -> Origins:
        """Describe which columns of a table contain the prompts and generators."""
        try:
            with _open_table(file.place, file.size) as (schema, _):
                images_of_row = _list_columns_by_image(schema.names, self.config)
                others = _list_other_columns(schema, images_of_row)
                return describe_column_origins(images_of_row, others, self.config.generator, file.place.url)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            origin = f"{file.place.url}, which cannot be read"
            return Origins(origin, origin)

    def reject_unnamed_images(self) -> list[Rejection]:
        """Return a rejection of kind `skipped` for each image file in the tables' folder that is not named in a row."""
        place = self.config.storage.locate(str(self.config.table))
        if self.config.images is not None or not place.is_folder():
            return []
        folder = list_image_folder(place, "table")
        if not folder.images:
            return []
        named = {path for file in self.sample_files for path in _read_image_paths(file, self.config)}
        reason = "no row of the tables names it"
        return [folder.skip(image, reason) for image in folder.images if folder.get_url(image) not in named]


def open_image_tables(config: IngestConfig) -> ImageTableSource | None:
    """Open an ingest's image table, or all image tables below a folder; return None if there are none.

    Raises ConfigError if a link leads out of the tables' folder.
    """
    if config.table is None:
        return None
    place = config.storage.locate(config.table)
    with convert_read_errors(place, "table"):
        entries = {path: entry for path, entry in place.files() if is_table(path or place.name, TABLE_SUFFIXES)}
    if not entries:
        return None
    roots = resolve_link_roots(place.path, config.link_roots) if place.is_local else []
    for path in entries:
        if roots and path and is_outside_roots((place / path).path, roots):
            raise ConfigError(f"table {place / path}: a link points outside {place.url}; add its target to link_roots")
    names = _name_files({path: path or place.name for path in entries})
    tables = [
        SampleFile(place=place / path, size=entry.size, etag=entry.etag, name=names[path])
        for path, entry in sorted(entries.items())
    ]
    labelled = False
    with suppress(pa.ArrowException, OSError), _open_table(tables[0].place, tables[0].size) as (schema, _):
        labelled = bool(find_labels(schema))
    edited = config.columns.source is not None
    return ImageTableSource(config=config, sample_files=tables, edited=edited, labelled=labelled)


def _name_files(paths: Mapping[str, str]) -> dict[str, str]:
    """Return a unique name for each table, keyed like `paths`; it becomes part of the ids of images that have none.

    The table a/b.parquet is named a-b; a digest is added if there is also an a-b.parquet.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for key, path in sorted(paths.items(), key=lambda each: ("/" in each[1], each[1])):
        name = escape_bytes(remove_ending(path.replace("/", "-"), TABLE_SUFFIXES))
        if name in used:
            name = f"{name}-{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:8]}"
        used.add(name)
        names[key] = name
    return names


@contextmanager
def _open_table(
    place: Place, size: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    with open_for_arrow(place, "table", size=size) as stream:
        if place.path.lower().endswith(".parquet"):
            parquet = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
            batches = parquet.iter_batches(ROWS_AT_ONCE, use_threads=False, columns=columns and list(columns))
            yield remove_views_from_schema(parquet.schema_arrow), map(remove_views, batches)
        else:
            reader = pa.ipc.open_stream(stream)
            starts = ((batch, start) for batch in reader for start in range(0, len(batch), ROWS_AT_ONCE))
            slices = (batch.slice(start, ROWS_AT_ONCE) for batch, start in starts)
            yield remove_views_from_schema(reader.schema), map(remove_views, slices)


class TableInspection(NamedTuple):
    """Properties of a table's image columns, determined from its schema and first rows."""

    has_several_images: bool = False
    """True if a row has several images."""
    generator: str | None = None
    """Column with the generators; if a row has several images, the column of the first image's generator."""
    has_image_paths: bool = False
    """True if the table contains paths to images instead of images."""
    image: str | None = None
    """Column with the images; None if the table has no column with the configured name or a usual name."""
    prompt: str | None = None
    """Column with the prompts; None if the table has no column with the configured name or a usual name."""


def inspect_table(place: Place, columns: InputColumnsConfig) -> TableInspection:
    """Return a table's properties, or the defaults if the table cannot be read; the ingest reports why."""
    try:
        with _open_table(place) as (schema, batches):
            names = find_column_names(schema.names, columns)
            usual = () if columns.image else EMBEDDED_COLUMNS
            image = next((name for name in (*usual, names.image) if name in schema.names), None)
            first_rows = next(batches, None) if image is not None else None
            cells = [] if first_rows is None else first_rows.column(image).drop_null().to_pylist()
            paths = [
                cell.get("path") if isinstance(cell, Mapping) and not cell.get("bytes") else cell for cell in cells
            ]
            return TableInspection(
                has_several_images=_count_images(schema.names) > 1,
                generator=names.generator or _find_numbered_column("generator", 0, schema.names),
                has_image_paths=bool(paths) and all(isinstance(path, str) for path in paths),
                image=image,
                prompt=names.prompt,
            )
    except (pa.ArrowException, OSError, ConfigError, UnicodeDecodeError):
        return TableInspection()


def _read_image_paths(file: SampleFile, config: IngestConfig) -> Iterator[str]:
    folder = config.storage.locate(file.place.url.rpartition("/")[0])
    with suppress(pa.ArrowException, OSError, UnicodeDecodeError, ConfigError):
        with _open_table(file.place, file.size) as (schema, _):
            names = [each.image for each in _list_columns_by_image(schema.names, config) if each.image is not None]
            types = {name: schema.field(name).type for name in names}
        columns = {
            name: f"{name}.path" if pa.types.is_struct(of) else name
            for name, of in types.items()
            if of not in BINARY_TYPES
        }
        with _open_table(file.place, file.size, list(columns.values())) as (_, batches):
            cells = (cell for batch in batches for name in columns for cell in batch.column(name).to_pylist())
            for path in (cell.get("path") if isinstance(cell, Mapping) else cell for cell in cells):
                with suppress(Refused):
                    yield f"{folder.url}/{make_relative(path, folder)}"


def _count_images(available: Sequence[str]) -> int:
    """Return the number of images per row according to the numbered columns; 0 if no columns are numbered."""
    count = 0
    while _find_numbered_column("image", count, available) is not None:
        count += 1
    return count


def _find_numbered_column(role: str, number: int, available: Sequence[str]) -> str | None:
    return next(
        (name.format(number) for name in NUMBERED_COLUMN_TEMPLATES[role] if name.format(number) in available), None
    )


def _list_columns_by_image(available: Sequence[str], config: IngestConfig) -> list[InputColumnsConfig]:
    count = _count_images(available) if config.columns.image is None else 0
    embedded = next((name for name in EMBEDDED_COLUMNS if name in available), None)
    asked = [
        replace(
            config.columns,
            image=_find_numbered_column("image", number, available),
            generator=config.columns.generator or _find_numbered_column("generator", number, available),
        )
        for number in range(count)
    ] or [replace(config.columns, image=config.columns.image or embedded)]
    return [require_input_columns(list(available), each, config.generator, str(config.table)) for each in asked]


def _list_other_columns(schema: pa.Schema, images_of_row: Sequence[InputColumnsConfig]) -> list[str]:
    images = {name for names in images_of_row for name in (names.image, names.source)}
    return [field.name for field in schema if field.name not in images and not pa.types.is_binary(field.type)]


def _read_image_cell(value: Any, file: SampleFile, config: IngestConfig) -> bytes:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        folder = config.images or file.place.url.rpartition("/")[0]
        return read_image(value, config.storage.locate(folder), config)
    if not isinstance(value, bytes):
        raise Refused("missing_image", f"expected an image or its path, found {type(value).__name__}; fill it in")
    if not value:
        raise Refused("missing_image", "the image is empty; generate it again")
    if len(value) > config.limits.max_bytes:
        problem = f"{len(value)} bytes are over limits.max_bytes={config.limits.max_bytes}"
        raise Refused("image_too_large", f"{problem}; check the image, or raise the limit")
    return value
