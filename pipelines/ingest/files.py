"""Image files that are listed in a table: finds and reads the file of each row, one shard of rows at a time."""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.embedded_settings import HEAD_BYTES, read_image_settings
from plumbline.pipelines.base.storage import Entry, Place, convert_read_errors
from plumbline.pipelines.base.tables import Refused, Rejection, Row
from plumbline.pipelines.ingest.draft_placement import PlacedShards
from plumbline.pipelines.ingest.draft_workers import Source, SourceFile, StartDraft
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    SETTINGS_FIELD,
    SHARD_SCHEMA,
    SKILLS_FIELD,
    SOURCE_FIELD,
    SOURCE_URI_FIELD,
    URI_FIELD,
    Candidate,
    get_text,
    hash_json,
    is_outside_roots,
    make_candidate,
    make_relative,
    read_known_ids,
    resolve_link_roots,
)
from plumbline.pipelines.ingest.shards import DraftedShard, DraftedUnit
from plumbline.pipelines.ingest.text_tables import Table, make_source_file
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.origins import Origins

N_READERS = 16
"""Number of image files that are read at once."""
N_HASHED_FIELDS = 6
"""Number of leading fields of ImageFile and Rejection that are part of keys; fields added later are not."""


class ImageFile(NamedTuple):
    """An image file as listed, without its content."""

    place: Place
    size: int
    etag: str


class TableRow(NamedTuple):
    candidate: Candidate
    path: str
    """Path of the row's image, relative to the image folder."""
    sources: Sequence[str]
    """Paths of the source images, if the image is an edit."""


class FoundRow(NamedTuple):
    """A row with either its image file or the reason why it was rejected."""

    candidate: Candidate
    image: ImageFile | Rejection
    sources: Sequence[ImageFile | str] = ()
    """Source images of an edit; a source that cannot be read is replaced by its path."""


class FileUnit(NamedTuple):
    """A unit of the input: the rows of one generator that become a shard."""

    generator: str
    rows: Sequence[TableRow]

    def __str__(self) -> str:
        first, last = self.rows[0].candidate, self.rows[-1].candidate
        return f"{first.file}, lines {first.line} to {last.line}"


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """The table of an ingest (or a folder that is read as a table), and the folder that image paths are relative to."""

    table: Table
    folder: Place

    @cached_property
    def _roots(self) -> list[Path]:
        return _resolve_link_roots(self.folder, self.config)

    @cached_property
    def names(self) -> InputColumnsConfig:
        return self.table.map_columns(self.config)

    @cached_property
    def extras(self) -> list[str]:
        """Columns of the table that have no role; raises ConfigError if a name is reserved for a shard column."""
        fixed = self.config.generator is not None
        used = {name for role, name in asdict(self.names).items() if role != "generator" or not fixed}
        extras = [name for name in self.table.types if name not in used]
        own_names = (*SHARD_SCHEMA.names, "uri", *(field.name for field in self._source_columns))
        if clash := next((name for name in extras if name in own_names), None):
            raise ConfigError(
                f"{self.table.url}: the name of column {clash!r} is reserved for a column of the shards; "
                f"assign a role to the column with columns.ROLE={clash}, or rename it in the table"
            )
        return extras

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self._hashed_schema, *([] if SETTINGS_FIELD.name in self.extras else [SETTINGS_FIELD])])

    @property
    def _hashed_schema(self) -> pa.Schema:
        """Columns that are part of the shards' keys: all except the generation settings, which were added later."""
        columns = [URI_FIELD if field.name == "image" and not self.config.copy else field for field in SHARD_SCHEMA]
        skills = [SKILLS_FIELD] if self.names.skills is not None else []
        return pa.schema([*columns, *skills, *self._source_columns, *self.table.make_schema(self.extras)])

    @property
    def _source_columns(self) -> list[pa.Field]:
        return [] if self.names.source is None else [SOURCE_FIELD if self.config.copy else SOURCE_URI_FIELD]

    @property
    def files(self) -> list[SourceFile]:
        return self.table.files

    @property
    def origins(self) -> Origins:
        return self.table.describe_origins(self.config)

    def list_files_to_probe(self) -> list[SourceFile]:
        """Return the table and the first image file that exists."""
        rows = next((unit.rows for unit in self.iterate_units([])), [])
        existing = (row for row in rows if isinstance(self._find_row_files(row).image, ImageFile))
        images = [self.config.storage.locate(f"{self.folder.url}/{row.path}") for row in islice(existing, 1)]
        return [*self.files, *(make_source_file(image, "images") for image in images)]

    def iterate_units(self, rejected: list[Rejection]) -> Iterator[FileUnit]:
        """Yield the rows of each shard, and append unreadable lines to `rejected`; incomplete shards come last."""
        waiting: dict[str, list[TableRow]] = defaultdict(list)
        for line in self.table.iterate_rows(self.names.image or ""):
            row = line if isinstance(line, Rejection) else self._read_row(line)
            if isinstance(row, Rejection):
                rejected.append(row)
                continue
            generator = row.candidate.generator
            waiting[generator].append(row)
            if len(waiting[generator]) == self.config.shard_rows:
                yield FileUnit(generator, waiting.pop(generator))
        yield from (FileUnit(generator, waiting[generator]) for generator in sorted(waiting))

    def _read_row(self, row: Row) -> TableRow | Rejection:
        file, line = self.table.locate_row(row)
        try:
            path = make_relative(row.values.get(self.names.image or ""), self.folder)
            candidate = make_candidate(
                row.values,
                self.names,
                file=file,
                line=line,
                generator=self.config.generator,
                default_id=path,
                extras=self.table.convert_values(row, self.extras),
            )
        except Refused as refused:
            image = get_text(row.values, self.names.image)
            ids = read_known_ids(row.values, self.names, self.config.generator, default_id=image)
            return refused.to_rejection(file, line, **ids)
        cell = row.values.get(self.names.source or "")
        sources = [path for path in (cell if isinstance(cell, list) else [cell]) if path and isinstance(path, str)]
        return TableRow(candidate, path, sources)

    def find_existing_shards(self, unit: FileUnit, shards: PlacedShards) -> DraftedUnit | None:
        """Return the unit's shard, which is identified by a hash of its rows and of each image's size and ETag.

        Returns None if the output has no shard at that path yet.
        """
        if not shards.has_next_shard(unit.generator):
            return None
        with ThreadPoolExecutor(N_READERS) as pool:
            content = self._hash_rows(list(pool.map(self._find_row_files, unit.rows)))
        return DraftedUnit([DraftedShard(unit.generator, content)], [])

    def draft(self, unit: FileUnit, start_draft: StartDraft) -> list[Rejection]:
        """Draft the unit's shard; raise ConfigError if the storage cannot be reached."""
        with ThreadPoolExecutor(N_READERS) as pool:
            found_rows = list(pool.map(self._find_row_files, unit.rows))
            shard = start_draft(unit.generator, self._hash_rows(found_rows))
            for group in _group_rows(found_rows, self.config):
                for found, (images, settings) in zip(group, pool.map(self._read, group), strict=True):
                    if isinstance(found.image, Rejection):
                        shard.rows.append(found.image)
                    else:
                        shard.add(found.candidate, images[0], images[1:], settings)
        return []

    def record_finished_unit(self, unit: FileUnit, drafted: DraftedUnit, output: Place) -> None:
        """Record nothing, because the existence of the shard shows that the unit is finished."""

    def _hash_rows(self, found_rows: Sequence[FoundRow]) -> str:
        sources = [[found.sources for found in found_rows]] if self._source_columns else []
        rows = [(self.table.select_hashed_part(found.candidate), found.image[:N_HASHED_FIELDS]) for found in found_rows]
        return hash_json([self.config.recipe, str(self._hashed_schema), self.folder.url, rows, *sources])

    def _find_row_files(self, row: TableRow) -> FoundRow:
        def find_file(path: str) -> ImageFile:
            return find_image(self.folder, path, self._roots, self.config.limits.max_bytes)

        def find_source(path: str) -> ImageFile | str:
            try:
                return find_file(make_relative(path, self.folder))
            except Refused:  # only metrics that need the source fail, so its path is kept
                return path

        try:
            return FoundRow(row.candidate, find_file(row.path), [find_source(path) for path in row.sources])
        except Refused as refused:
            return FoundRow(row.candidate, row.candidate.reject(refused))

    def _read(self, found: FoundRow) -> tuple[Sequence[bytes | str], Mapping[str, str]]:
        """Return the image followed by its readable sources, and the settings that the image was generated with.

        Images are bytes, or addresses if they are not copied. Images that stay in cloud storage are not read, so their
        embedded settings are unknown.
        """
        if isinstance(found.image, Rejection):
            return [], {}
        files = (found.image, *found.sources)
        if self.config.copy:
            images = [_read_file(file, self.folder) for file in files if isinstance(file, ImageFile)]
            return images, read_image_settings(images[0])
        places = [file.place if isinstance(file, ImageFile) else self.folder / file for file in files]
        head = b""
        if places[0].is_local:
            # scoring will report an unreadable file; a plain open, because fsspec's takes several times as long
            with suppress(OSError), open(places[0].path, "rb") as stream:  # noqa: PTH123
                head = stream.read(HEAD_BYTES)
        return [self.config.storage.locate(place.uri).url for place in places], read_image_settings(head)


def _read_file(file: ImageFile, folder: Place) -> bytes:
    with convert_read_errors(folder, f"{file.place} in images"):
        content = file.place.read()
    if len(content) != file.size:
        raise ConfigError(f"{file.place}: the file changed while it was being read; run the same command again")
    return content


def read_image(path: str, folder: Place, config: IngestConfig) -> bytes:
    """Read the image file named in a table cell; raise Refused if the folder has no such image."""
    image = find_image(
        folder, make_relative(path, folder), _resolve_link_roots(folder, config), config.limits.max_bytes
    )
    return _read_file(image, folder)


def _resolve_link_roots(folder: Place, config: IngestConfig) -> list[Path]:
    return resolve_link_roots(folder.path, config.link_roots) if folder.is_local else []


def _group_rows(found_rows: Sequence[FoundRow], limits: IngestConfig) -> Iterator[list[FoundRow]]:
    group: list[FoundRow] = []
    total = 0
    for found in found_rows:
        size = sum(file.size for file in (found.image, *found.sources) if isinstance(file, ImageFile))
        if group and (len(group) == limits.row_group_rows or total + size > limits.row_group_bytes):
            yield group
            group, total = [], 0
        group.append(found)
        total += size
    if group:
        yield group


def find_image(folder: Place, relative: str, roots: Sequence[Path], max_bytes: int) -> ImageFile:
    """Return an image file with its size and ETag; the file's name may use a different Unicode normalization.

    Raises Refused if the file is missing or unreadable, or if a link leads out of `roots`.
    """
    if not relative.isascii():  # an é may be one character in a table, and two in the file's name on another system
        forms = dict.fromkeys((relative, normalize("NFC", relative), normalize("NFD", relative)))
        with convert_read_errors(folder, "images"):
            relative = next((form for form in forms if (folder / form).exists()), relative)
    place = folder / relative
    if place.is_local and is_outside_roots(place.path, roots):
        remedy = "put the file itself there, or add the folder of the link's target to link_roots"
        raise Refused("outside_folder", f"{place}: a link points outside {folder.url}; {remedy}")
    with convert_read_errors(folder, "images"):
        try:
            entry = _read_local_entry(place.path) if place.is_local else place.get_entry()
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"no file at {place}; generate the image again, or correct the path"
            raise Refused("missing_image", message) from error
        except OSError as error:
            if not place.is_local and not isinstance(error, PermissionError):
                raise
            message = f"{place}: {error.strerror or error}; correct the path or the rights"
            raise Refused("unreadable_image", message) from error
    if entry.type != "file":
        raise Refused("missing_image", f"{place}: expected an image file, found a {entry.type}; correct the path")
    if entry.size == 0:
        raise Refused("missing_image", f"{place} is empty; generate the image again")
    if entry.size > max_bytes:
        message = f"{place}: {entry.size} bytes are over limits.max_bytes={max_bytes}; check it, or raise the limit"
        raise Refused("image_too_large", message)
    return ImageFile(place, entry.size, entry.etag)


def _read_local_entry(path: str) -> Entry:
    found = os.stat(path)  # noqa: PTH116  # a path of a table: once per row, where pathlib is slow
    entry_type = "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "device"
    if entry_type == "file" and not os.access(path, os.R_OK):
        raise PermissionError(13, "access denied")
    return Entry(entry_type, found.st_size, str(found.st_mtime_ns), found.st_mtime)
