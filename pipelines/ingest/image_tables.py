"""Parquet and Arrow tables with images in them, as datasets are published: one image a row, or several to compare.

A cell of images is bytes, Hugging Face's `{bytes, path}`, or a path. Rows of numbered columns (`jpg_0` with `model_0`,
`jpg_1` with `model_1`, as in Pick-a-Pic) hold an image for each number.
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
from plumbline.operators.images.generation_settings import field_settings
from plumbline.pipelines.base.class_labels import find_labels, name_labels
from plumbline.pipelines.base.storage import Place, first_line, readable_errors
from plumbline.pipelines.base.tables import DAMAGED_TABLE, Refused, Rejection, printable
from plumbline.pipelines.base.view_types import schema_without_views, without_views
from plumbline.pipelines.ingest.files import read_image
from plumbline.pipelines.ingest.image_folders import list_images
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    column_origins,
    leads_out,
    link_roots,
    make_candidate,
    read_known_ids,
    relative_path,
    require_names,
)
from plumbline.pipelines.ingest.sample_files import ImageSample, SampleFile, stem
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_names
from plumbline.pipelines.sources.origins import Origins
from plumbline.pipelines.sources.shards import BINARY, is_table

ENDINGS = (".parquet", ".arrow")
ROWS_AT_ONCE = 16
EMBEDDED = ("image", "jpg", "png", "webp")
"""What the column of the images is called, before one of paths alone."""
NUMBERED = {"image": ("jpg_{}", "image_{}", "png_{}"), "generator": ("model_{}", "generator_{}")}
"""What the columns of several images in a row are called, counted from 0."""
AGAIN = "it may be truncated: write or download it again"


def find_tables(config: IngestConfig) -> list[SampleFile]:
    """The table, or those below a folder, by name; none where it is neither. Raises ConfigError for links out of it."""
    place = config.storage.locate(str(config.table))
    with readable_errors(place, "table"):
        entries = {path: entry for path, entry in place.files() if is_table(path or place.name, ENDINGS)}
    roots = link_roots(place.path, config.link_roots) if place.is_local else []
    for path in entries:
        if roots and path and leads_out((place / path).path, roots):
            raise ConfigError(f"table {place / path}: a link leads out of {place.url}; add its folder to link_roots")
    names = _name_files({path: path or place.name for path in entries})
    return [
        SampleFile(place=place / path, size=entry.size, etag=entry.etag, name=names[path])
        for path, entry in sorted(entries.items())
    ]


def _name_files(paths: Mapping[str, str]) -> dict[str, str]:
    """Return a unique name for each table, used in the ids of rows that have none.

    The name of a/b.parquet is a-b, followed by a digest if there is also an a-b.parquet.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key, path in sorted(paths.items(), key=lambda each: ("/" in each[1], each[1])):
        name = printable(stem(path.replace("/", "-"), ENDINGS))
        if name in taken:
            name = f"{name}-{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:8]}"
        taken.add(name)
        names[key] = name
    return names


def read_rows(file: SampleFile, config: IngestConfig) -> Iterator[ImageSample | Rejection]:
    """A table's images in order; a row that is none costs itself, damage what is after it."""
    number = 0
    try:
        with _opened(file.place, file.size) as (schema, batches):
            several = _several(schema.names, config)
            others = _others(schema, several)
            for batch in batches:
                batch.validate(full=True)
                for row in name_labels(batch).to_pylist():
                    number += 1
                    for index, names in enumerate(several):
                        yield _sample(file, config, row, names, _name(number, index, several), others)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        message = f"not readable after row {number} ({first_line(error)}): what is after it is lost; {AGAIN}"
        yield Refused(DAMAGED_TABLE, message).at(file.place.url)


@contextmanager
def _opened(
    place: Place, size: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The table's columns, and its rows some at a time; of Parquet those of `columns`, all by default."""
    with readable_errors(place, "table"), place.open(size=size) as stream:
        try:
            if place.path.lower().endswith(".parquet"):
                parquet = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
                batches = parquet.iter_batches(ROWS_AT_ONCE, use_threads=False, columns=columns and list(columns))
                yield schema_without_views(parquet.schema_arrow), map(without_views, batches)
            else:
                reader = pa.ipc.open_stream(stream)
                parts = (part for batch in reader for part in _cut(batch))
                yield schema_without_views(reader.schema), map(without_views, parts)
        except OSError as error:
            if error.errno is not None:  # Arrow's own have none
                raise
            raise pa.ArrowInvalid(str(error)) from error


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, ROWS_AT_ONCE) for start in range(0, len(batch), ROWS_AT_ONCE))


class TableInspection(NamedTuple):
    """What a table says of its images, by its columns and first rows."""

    several: bool = False
    """Whether a row has several images."""
    generator: str | None = None
    """The column that names their generators, of several the first's."""
    paths: bool = False
    """Whether it names their files, and holds none."""
    image: str | None = None
    prompt: str | None = None
    """Their columns; None where there are none as named, nor by the usual names."""


def look_at(place: Place, columns: InputColumnsConfig) -> TableInspection:
    """What a table says; nothing where it cannot be read, which is said of it elsewhere."""
    try:
        with _opened(place) as (schema, batches):
            names = find_names(schema.names, columns)
            usual = () if columns.image else EMBEDDED
            image = next((name for name in (*usual, names.image) if name in schema.names), None)
            return TableInspection(
                several=images_a_row(schema.names) > 1,
                generator=names.generator or _numbered("generator", 0, schema.names),
                paths=image is not None and _holds_paths(image, next(batches, None)),
                image=image,
                prompt=names.prompt,
            )
    except (pa.ArrowException, OSError, ConfigError, UnicodeDecodeError):
        return TableInspection()


def describe_table(file: SampleFile, config: IngestConfig) -> Origins:
    """Which of a table's columns tell the prompts and the generators."""
    try:
        with _opened(file.place, file.size) as (schema, _):
            several = _several(schema.names, config)
            return column_origins(several, _others(schema, several), config.generator, file.place.url)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return Origins(f"{file.place.url}, which cannot be read", f"{file.place.url}, which cannot be read")


def has_labels(file: SampleFile) -> bool:
    """Return True if a column of a table is of Hugging Face's class labels."""
    with suppress(pa.ArrowException, OSError), _opened(file.place, file.size) as (schema, _):
        return bool(find_labels(schema))
    return False


def unnamed_images(files: Sequence[SampleFile], config: IngestConfig) -> list[Rejection]:
    """Return the image files of a folder of tables that no row names: they are skipped."""
    place = config.storage.locate(str(config.table))
    if config.images is not None or not place.is_folder():
        return []
    folder = list_images(place, "table")
    if not folder.images:
        return []
    named = {path for file in files for path in _read_image_paths(file, config)}
    return [
        folder.skip(image, "no row of the tables names it") for image in folder.images if folder.at(image) not in named
    ]


def _read_image_paths(file: SampleFile, config: IngestConfig) -> Iterator[str]:
    """Yield the addresses of the image files that a table's rows name, up to any damage."""
    folder = config.storage.locate(file.place.url.rpartition("/")[0])
    with suppress(pa.ArrowException, OSError, UnicodeDecodeError, ConfigError):
        with _opened(file.place, file.size) as (schema, _):
            names = [each.image for each in _several(schema.names, config) if each.image is not None]
            types = {name: schema.field(name).type for name in names}
        columns = {
            name: f"{name}.path" if pa.types.is_struct(of) else name for name, of in types.items() if of not in BINARY
        }
        with _opened(file.place, file.size, list(columns.values())) as (_, batches):
            cells = (cell for batch in batches for name in columns for cell in batch.column(name).to_pylist())
            for path in (cell.get("path") if isinstance(cell, Mapping) else cell for cell in cells):
                with suppress(Refused):
                    yield f"{folder.url}/{relative_path(path, folder)}"


def _holds_paths(image: str, rows: pa.RecordBatch | None) -> bool:
    """Whether the first rows have paths alone."""
    cells = [] if rows is None else [value for value in rows.column(image).to_pylist() if value is not None]
    bare = [value.get("path") if isinstance(value, Mapping) and not value.get("bytes") else value for value in cells]
    return bool(bare) and all(isinstance(value, str) for value in bare)


def images_a_row(available: Sequence[str]) -> int:
    """How many images a row has by the names of its columns; 0 where they are not numbered."""
    return next(
        (count for count in range(len(available) + 1) if _numbered("image", count, available) is None), len(available)
    )


def _numbered(role: str, number: int, available: Sequence[str]) -> str | None:
    return next((name.format(number) for name in NUMBERED[role] if name.format(number) in available), None)


def _several(available: Sequence[str], config: IngestConfig) -> list[InputColumnsConfig]:
    """The columns of each image of a row; raises ConfigError where one is needed and not there."""
    count = images_a_row(available) if config.columns.image is None else 0
    asked = [
        replace(
            config.columns,
            image=_numbered("image", number, available),
            generator=config.columns.generator or _numbered("generator", number, available),
        )
        for number in range(count)
    ]
    embedded = next((name for name in EMBEDDED if name in available), None)
    one = config.columns if config.columns.image or embedded is None else replace(config.columns, image=embedded)
    return [require_names(list(available), each, config.generator, str(config.table)) for each in asked or [one]]


def _others(schema: pa.Schema, several: Sequence[InputColumnsConfig]) -> list[str]:
    """The columns that are kept as JSON: those that are no images."""
    images = {name for names in several for name in (names.image, names.source)}
    return [field.name for field in schema if field.name not in images and not pa.types.is_binary(field.type)]


def _name(number: int, index: int, several: Sequence[InputColumnsConfig]) -> str:
    return f"{number}-{index}" if len(several) > 1 else str(number)


def _sample(
    file: SampleFile,
    config: IngestConfig,
    row: Mapping[str, Any],
    names: InputColumnsConfig,
    name: str,
    others: Sequence[str],
) -> ImageSample | Rejection:
    line, default_id = int(name.partition("-")[0]), f"{file.name}/{name}"
    try:
        candidate = make_candidate(
            row,
            names,
            file=file.place.url,
            line=line,
            generator=config.generator,
            default_id=default_id,
            extras={"sample": json.dumps({key: row[key] for key in others}, ensure_ascii=False, default=str)},
        )
        image = _image(row[names.image or ""], file, config)
        return ImageSample(candidate, image, _sources(row, names, file, config), field_settings(row))
    except Refused as refused:
        return refused.at(file.place.url, line, **read_known_ids(row, names, config.generator, default_id)._asdict())


def _sources(row: Mapping[str, Any], names: InputColumnsConfig, file: SampleFile, config: IngestConfig) -> list[bytes]:
    """The sources of an edit that can be read: any other costs what looks at it, and not the row."""
    value = row.get(names.source or "")
    sources = []
    for each in value if isinstance(value, list) else [value]:
        with suppress(Refused):
            sources.append(_image(each, file, config))
    return sources


def _image(value: Any, file: SampleFile, config: IngestConfig) -> bytes:
    """The bytes in a cell, or of the file that it names; raises Refused where there are none."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        beside = config.images or file.place.url.rpartition("/")[0]
        return read_image(value, config.storage.locate(beside), config)
    if not isinstance(value, bytes):
        raise Refused("missing_image", f"expected an image or its path, found {type(value).__name__}; fill it in")
    if not value:
        raise Refused("missing_image", "the image is empty; generate it again")
    if len(value) > config.limits.max_bytes:
        problem = f"{len(value)} bytes are over limits.max_bytes={config.limits.max_bytes}"
        raise Refused("image_too_large", f"{problem}; check it, or raise the limit")
    return value
