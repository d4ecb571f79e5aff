"""Image files that a table names: each row with its file, a shard's rows at a time."""

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
"""Image files that are read at once."""
N_HASHED = 6
"""Fields of an image file or a rejection that are hashed; those that were added later are not."""


class ImageFile(NamedTuple):
    """An image file that can be read."""

    place: Place
    size: int
    etag: str


class Offer(NamedTuple):
    """A table's row and its image file, or why there is none."""

    candidate: Candidate
    image: ImageFile | Rejection
    sources: Sequence[ImageFile | str] = ()
    """Of an edit; in place of one that cannot be read, its path."""


class TableRow(NamedTuple):
    """A row of a table, and its image's path below the folder of images."""

    candidate: Candidate
    path: str
    sources: Sequence[str] = ()
    """Those of an edit's sources."""


class FileUnit(NamedTuple):
    """The rows that make a shard."""

    generator: str
    rows: Sequence[TableRow]

    def __str__(self) -> str:
        first, last = self.rows[0].candidate, self.rows[-1].candidate
        return f"{first.file}, lines {first.line} to {last.line}"


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """A table, or a folder that tells as much, and the folder that its paths start from."""

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
        """The table's other columns; raises ConfigError where one of them has a shard's own name."""
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
        """The columns but for what pictures say: the keys of shards hold it."""
        columns = [ADDRESS if field.name == "image" and not self.config.copy else field for field in COLUMNS]
        skills = [SKILLS] if self.names.skills is not None else []
        return pa.schema([*columns, *skills, *self._sources, *self.table.schema(self.extras)])

    @property
    def _sources(self) -> list[pa.Field]:
        """The column of an edit's sources, where they are given."""
        return [] if self.names.source is None else [SOURCE if self.config.copy else SOURCE_ADDRESS]

    @property
    def files(self) -> list[SourceFile]:
        return self.table.files

    @property
    def origins(self) -> Origins:
        return self.table.origins(self.config)

    def landmarks(self) -> list[SourceFile]:
        """The table, and the first image that is there."""
        rows = next((unit.rows for unit in self.units([])), [])
        there = (row for row in rows if isinstance(self._find(row).image, ImageFile))
        images = [self.config.storage.locate(f"{self.folder.url}/{row.path}") for row in islice(there, 1)]
        return [*self.files, *(source_file(image, "images") for image in images)]

    def units(self, rejected: list[Rejection]) -> Iterator[FileUnit]:
        """The rows a generator's shard at a time, what remains last, by name; lines that are none go to `rejected`."""
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
            return refused.at(file, line, **ids._asdict())
        return TableRow(candidate, path, _paths(row.values.get(self.names.source or "")))

    def outline(self, unit: FileUnit, shards: Shards) -> Drafted | None:
        """What the unit's shard is made of, where one stands in its place: its rows and each image's size and etag."""
        if not shards.next_is_taken(unit.generator):
            return None
        with ThreadPoolExecutor(READERS) as pool:
            content = self._content(list(pool.map(self._find, unit.rows)))
        return Drafted([DraftedShard(unit.generator, content)], [])

    def draft(self, unit: FileUnit, begin: Begin) -> list[Rejection]:
        """Drafts the unit's shard; raises ConfigError where the storage does not answer."""
        with ThreadPoolExecutor(READERS) as pool:
            offers = list(pool.map(self._find, unit.rows))
            shard = begin(unit.generator, self._content(offers))
            for group in _groups(offers, self.config):
                for offer, (images, settings) in zip(group, pool.map(self._read, group), strict=True):
                    if isinstance(offer.image, Rejection):
                        shard.rows.append(offer.image)
                    else:
                        shard.add(offer.candidate, images[0], images[1:], settings)
        return []

    def end(self, unit: FileUnit, drafted: Drafted, output: Place) -> None:
        """A shard that stands tells by itself that it is there."""

    def _content(self, offers: Sequence[Offer]) -> str:
        sources = [[offer.sources for offer in offers]] if self._sources else []
        rows = [(self.table.hashed(offer.candidate), offer.image[:N_HASHED]) for offer in offers]
        return digest([self.config.recipe, str(self.named), self.folder.url, rows, *sources])

    def _find(self, row: TableRow) -> Offer:
        """Looks the image file up; raises ConfigError where the storage does not answer."""
        candidate = row.candidate
        try:
            image = self._find_file(row.path)
        except Refused as refused:
            return Offer(candidate, candidate.reject(refused))
        return Offer(candidate, image, [self._find_source(path) for path in row.sources])

    def _find_file(self, path: str) -> ImageFile:
        return _find_image(self.folder, path, self._roots, self.config.limits.max_bytes)

    def _find_source(self, path: str) -> ImageFile | str:
        """As `_find_file`; one that cannot be read costs what looks at it, and not the row."""
        try:
            return self._find_file(relative_path(path, self.folder))
        except Refused:
            return path

    def _read(self, offer: Offer) -> tuple[Sequence[bytes | str], Mapping[str, str]]:
        """The image and its sources that can be read, or their addresses where they stay where they are; and what the
        image says that it was generated with, unless it stays in a cloud.
        """
        if isinstance(offer.image, Rejection):
            return [], {}
        files = (offer.image, *offer.sources)
        if not self.config.copy:
            place = offer.image.place
            settings = picture_settings(_head(place)) if place.is_local else {}
            return [self._address(file) for file in files], settings
        images = [_read_file(file, self.folder) for file in files if isinstance(file, ImageFile)]
        return images, picture_settings(images[0])

    def _address(self, file: ImageFile | str) -> str:
        place = file.place if isinstance(file, ImageFile) else self.folder / file
        return self.config.storage.locate(place.uri).url


def _head(place: Place) -> bytes:
    """The beginning of a local file; nothing of one that cannot be read, which is said where it is scored."""
    try:
        with place.open() as stream:
            head: bytes = stream.read(HEAD_BYTES)
            return head
    except OSError:
        return b""


def _paths(value: Any) -> list[str]:
    """The paths of sources in a cell, of one or of several."""
    return [path for path in (value if isinstance(value, list) else [value]) if path and isinstance(path, str)]


def _read_file(file: ImageFile, folder: Place) -> bytes:
    """Its bytes; raises ConfigError where they are not those that were found."""
    with readable_errors(folder, f"{file.place} in images"):
        content = file.place.read()
    if len(content) != file.size:
        raise ConfigError(f"{file.place}: the file changed while it was read; run the same command again")
    return content


def read_image(path: str, folder: Place, config: IngestConfig) -> bytes:
    """The image file that a cell of a table names; raises Refused where there is none to read below the folder."""
    relative = relative_path(path, folder)
    image = _find_image(folder, relative, _roots(folder, config), config.limits.max_bytes)
    with readable_errors(folder, f"{image.place} in images"):
        return image.place.read()


def _roots(folder: Place, config: IngestConfig) -> list[Path]:
    return link_roots(folder.path, config.link_roots) if folder.is_local else []


def _groups(offers: Sequence[Offer], limits: IngestConfig) -> Iterator[list[Offer]]:
    """As many rows as may be in memory at once."""
    group: list[Offer] = []
    total = 0
    for offer in offers:
        size = sum(file.size for file in (offer.image, *offer.sources) if isinstance(file, ImageFile))
        if group and (len(group) == limits.row_group_rows or total + size > limits.row_group_bytes):
            yield group
            group, total = [], 0
        group.append(offer)
        total += size
    if group:
        yield group


def _find_image(folder: Place, relative: str, roots: Sequence[Path], max_bytes: int) -> ImageFile:
    """The image file's size and etag; raises Refused where there is none to read, or a link leads out of `roots`."""
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
    """A local file's facts; raises OSError."""
    found = os.stat(path)  # noqa: PTH116  # a path of a table: once per row
    entry_type = "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "device"
    if entry_type == "file" and not os.access(path, os.R_OK):
        raise PermissionError(13, "access denied")
    return Entry(entry_type, found.st_size, str(found.st_mtime_ns), found.st_mtime)
