"""Image files named by a table: finds and reads the file of each row, one shard of rows at a time."""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.embedded_settings import HEAD_BYTES, picture_settings
from plumbline.pipelines.base.storage import Entry, Place, readable_errors
from plumbline.pipelines.base.tables import Refused, Rejection, Row
from plumbline.pipelines.ingest.drafting import Begin, Source, SourceFile
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    ADDRESS,
    COLUMNS,
    KEPT_SETTINGS,
    SKILLS,
    SOURCE,
    SOURCE_ADDRESS,
    Candidate,
    digest,
    leads_out,
    link_roots,
    make_candidate,
    read_known_ids,
    relative_path,
    text_or_none,
)
from plumbline.pipelines.ingest.placing import Shards
from plumbline.pipelines.ingest.shards import Drafted, DraftedShard
from plumbline.pipelines.ingest.typed_tables import Table, source_file
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.origins import Origins

READERS = 16
"""Number of image files that are read at once."""
N_HASHED = 6
"""Number of fields of an image file or a rejection that are hashed; fields that were added later are not."""


class ImageFile(NamedTuple):
    """An image file, as it is listed."""

    place: Place
    size: int
    etag: str


class FoundRow(NamedTuple):
    """A row with its image file, or with its rejection."""

    candidate: Candidate
    image: ImageFile | Rejection
    sources: Sequence[ImageFile | str] = ()
    """Source images of an edit; the path of each that cannot be read."""


class TableRow(NamedTuple):
    """A row of a table with the path of its image below the folder of images."""

    candidate: Candidate
    path: str
    sources: Sequence[str] = ()
    """Paths of the sources of an edit."""


class FileUnit(NamedTuple):
    """The rows of a shard."""

    generator: str
    rows: Sequence[TableRow]

    def __str__(self) -> str:
        first, last = self.rows[0].candidate, self.rows[-1].candidate
        return f"{first.file}, lines {first.line} to {last.line}"


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """A table, or a folder with descriptions, and the folder that its paths start from."""

    table: Table
    folder: Place

    @cached_property
    def _roots(self) -> list[Path]:
        return _roots(self.folder, self.config)

    @cached_property
    def names(self) -> InputColumnsConfig:
        return self.table.names(self.config)

    @cached_property
    def extras(self) -> list[str]:
        """The table's other columns; raises ConfigError if one has the name of a shard's own column."""
        fixed = self.config.generator is not None
        used = {name for role, name in asdict(self.names).items() if role != "generator" or not fixed}
        extras = [name for name in self.table.types if name not in used]
        clash = [name for name in extras if name in (*COLUMNS.names, "uri", *(field.name for field in self._sources))]
        if clash:
            raise ConfigError(
                f"{self.table.url}: column {clash[0]!r} has the name of a shard's own; "
                f"take it by columns.*={clash[0]}, or rename it in the table"
            )
        return extras

    @property
    def schema(self) -> pa.Schema:
        kept = [] if KEPT_SETTINGS.name in self.extras else [KEPT_SETTINGS]
        return pa.schema([*self.named, *kept])

    @property
    def named(self) -> pa.Schema:
        """Columns without the settings in images. The keys of existing shards contain this schema."""
        columns = [ADDRESS if field.name == "image" and not self.config.copy else field for field in COLUMNS]
        skills = [SKILLS] if self.names.skills is not None else []
        return pa.schema([*columns, *skills, *self._sources, *self.table.schema(self.extras)])

    @property
    def _sources(self) -> list[pa.Field]:
        """Column of the sources of edits, if the input has any."""
        return [] if self.names.source is None else [SOURCE if self.config.copy else SOURCE_ADDRESS]

    @property
    def files(self) -> list[SourceFile]:
        return self.table.files

    @property
    def origins(self) -> Origins:
        return self.table.origins(self.config)

    def landmarks(self) -> list[SourceFile]:
        """Return the table and the first image that exists."""
        rows = next((unit.rows for unit in self.units([])), [])
        there = (row for row in rows if isinstance(self._find(row).image, ImageFile))
        images = [self.config.storage.locate(f"{self.folder.url}/{row.path}") for row in islice(there, 1)]
        return [*self.files, *(source_file(image, "images") for image in images)]

    def units(self, rejected: list[Rejection]) -> Iterator[FileUnit]:
        """Yield the rows of each shard, the last, incomplete ones by generator; reject unreadable lines."""
        waiting: dict[str, list[TableRow]] = defaultdict(list)
        for line in self.table.rows(self.names.image or ""):
            row = line if isinstance(line, Rejection) else self._candidate(line)
            if isinstance(row, Rejection):
                rejected.append(row)
                continue
            generator = row.candidate.generator
            waiting[generator].append(row)
            if len(waiting[generator]) == self.config.shard_rows:
                yield FileUnit(generator, waiting.pop(generator))
        yield from (FileUnit(generator, waiting[generator]) for generator in sorted(waiting))

    def _candidate(self, row: Row) -> TableRow | Rejection:
        file, line = self.table.source(row)
        try:
            path = relative_path(row.values.get(self.names.image or ""), self.folder)
            candidate = make_candidate(
                row.values,
                self.names,
                file=file,
                line=line,
                generator=self.config.generator,
                default_id=path,
                extras=self.table.values(row, self.extras),
            )
        except Refused as refused:
            image = text_or_none(row.values, self.names.image)
            ids = read_known_ids(row.values, self.names, self.config.generator, default_id=image)
            return refused.at(file, line, **ids)
        return TableRow(candidate, path, _paths(row.values.get(self.names.source or "")))

    def outline(self, unit: FileUnit, shards: Shards) -> Drafted | None:
        """Return the content of the unit's shard, a hash of its rows and of each image's size and etag.

        None if the output does not have that shard yet.
        """
        if not shards.next_is_taken(unit.generator):
            return None
        with ThreadPoolExecutor(READERS) as pool:
            content = self._content(list(pool.map(self._find, unit.rows)))
        return Drafted([DraftedShard(unit.generator, content)], [])

    def draft(self, unit: FileUnit, begin: Begin) -> list[Rejection]:
        """Draft the unit's shard; raises ConfigError if the storage does not answer."""
        with ThreadPoolExecutor(READERS) as pool:
            found_rows = list(pool.map(self._find, unit.rows))
            shard = begin(unit.generator, self._content(found_rows))
            for group in _groups(found_rows, self.config):
                for found, (images, settings) in zip(group, pool.map(self._read, group), strict=True):
                    if isinstance(found.image, Rejection):
                        shard.rows.append(found.image)
                    else:
                        shard.add(found.candidate, images[0], images[1:], settings)
        return []

    def end(self, unit: FileUnit, drafted: Drafted, output: Place) -> None:
        """Do nothing: the shard itself shows that the unit is finished."""

    def _content(self, found_rows: Sequence[FoundRow]) -> str:
        sources = [[found.sources for found in found_rows]] if self._sources else []
        rows = [(self.table.hashed(found.candidate), found.image[:N_HASHED]) for found in found_rows]
        return digest([self.config.recipe, str(self.named), self.folder.url, rows, *sources])

    def _find(self, row: TableRow) -> FoundRow:
        """Find the files of a row; raises ConfigError if the storage does not answer."""
        candidate = row.candidate
        try:
            image = self._find_file(row.path)
        except Refused as refused:
            return FoundRow(candidate, candidate.reject(refused))
        return FoundRow(candidate, image, [self._find_source(path) for path in row.sources])

    def _find_file(self, path: str) -> ImageFile:
        return _find_image(self.folder, path, self._roots, self.config.limits.max_bytes)

    def _find_source(self, path: str) -> ImageFile | str:
        """Find a source image; if it cannot be read, only metrics that need the source fail, so its path is kept."""
        try:
            return self._find_file(relative_path(path, self.folder))
        except Refused:
            return path

    def _read(self, found: FoundRow) -> tuple[Sequence[bytes | str], Mapping[str, str]]:
        """Return the image and its readable sources, and the settings that the image was generated with.

        Images are bytes, or addresses if they stay in their files. An image that stays in a cloud is not read for its
        settings.
        """
        if isinstance(found.image, Rejection):
            return [], {}
        files = (found.image, *found.sources)
        if not self.config.copy:
            place = found.image.place
            settings = picture_settings(_head(place)) if place.is_local else {}
            return [self._address(file) for file in files], settings
        images = [_read_file(file, self.folder) for file in files if isinstance(file, ImageFile)]
        return images, picture_settings(images[0])

    def _address(self, file: ImageFile | str) -> str:
        place = file.place if isinstance(file, ImageFile) else self.folder / file
        return self.config.storage.locate(place.uri).url


def _head(place: Place) -> bytes:
    """Return the beginning of a local file; empty if it cannot be read, which scoring will report."""
    try:
        with place.open() as stream:
            head: bytes = stream.read(HEAD_BYTES)
            return head
    except OSError:
        return b""


def _paths(value: Any) -> list[str]:
    """Return the paths of one or several sources in a cell."""
    return [path for path in (value if isinstance(value, list) else [value]) if path and isinstance(path, str)]


def _read_file(file: ImageFile, folder: Place) -> bytes:
    """Read a file; raises ConfigError if its size has changed since it was found."""
    with readable_errors(folder, f"{file.place} in images"):
        content = file.place.read()
    if len(content) != file.size:
        raise ConfigError(f"{file.place}: the file changed while it was read; run the same command again")
    return content


def read_image(path: str, folder: Place, config: IngestConfig) -> bytes:
    """Read the image file that a table's cell names; raises Refused if the folder has no such image."""
    relative = relative_path(path, folder)
    image = _find_image(folder, relative, _roots(folder, config), config.limits.max_bytes)
    with readable_errors(folder, f"{image.place} in images"):
        return image.place.read()


def _roots(folder: Place, config: IngestConfig) -> list[Path]:
    return link_roots(folder.path, config.link_roots) if folder.is_local else []


def _groups(found_rows: Sequence[FoundRow], limits: IngestConfig) -> Iterator[list[FoundRow]]:
    """Group rows whose images fit into one row group."""
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


def _find_image(folder: Place, relative: str, roots: Sequence[Path], max_bytes: int) -> ImageFile:
    """Return the size and etag of an image file.

    Raises Refused if the file is missing or unreadable, or if a link leads out of `roots`.
    """
    place = folder / _match_unicode_form(folder, relative)
    if place.is_local and leads_out(place.path, roots):
        message = (
            f"{place}: a link leads out of {folder.url}; put the file itself there, or add its folder to link_roots"
        )
        raise Refused("outside_folder", message)
    with readable_errors(folder, "images"):
        try:
            entry = _local_entry(place.path) if place.is_local else place.entry()
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"no file at {place}; generate the image again, or correct the path"
            raise Refused("missing_image", message) from error
        except OSError as error:
            if not place.is_local and not isinstance(error, PermissionError):
                raise
            message = f"{place}: {error.strerror or error}; correct the path or the rights"
            raise Refused("unreadable_image", message) from error
    if entry.type != "file":
        raise Refused("missing_image", f"{place} is a {entry.type}; the path of an image file is expected")
    if entry.size == 0:
        raise Refused("missing_image", f"{place} is empty; generate the image again")
    if entry.size > max_bytes:
        message = f"{place}: {entry.size} bytes are over limits.max_bytes={max_bytes}; check it, or raise the limit"
        raise Refused("image_too_large", message)
    return ImageFile(place, entry.size, entry.etag)


def _match_unicode_form(folder: Place, relative: str) -> str:
    """Return a path in the Unicode form of its file's name.

    An é may be one character in a table and two in the file's name on another system.
    """
    if relative.isascii():
        return relative
    forms = dict.fromkeys((relative, normalize("NFC", relative), normalize("NFD", relative)))
    with readable_errors(folder, "images"):
        return next((form for form in forms if (folder / form).exists()), relative)


def _local_entry(path: str) -> Entry:
    found = os.stat(path)  # noqa: PTH116  # a path of a table: once per row
    entry_type = "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "device"
    if entry_type == "file" and not os.access(path, os.R_OK):
        raise PermissionError(13, "access denied")
    return Entry(entry_type, found.st_size, str(found.st_mtime_ns), found.st_mtime)
