"""Image files that a table names: each row with its file, a shard's rows at a time."""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from operators.errors import ConfigError
from pipelines.ingest.placing import Outline, Shards
from pipelines.ingest.rows import (
    COLUMNS,
    Candidate,
    InputColumnsConfig,
    Names,
    digest,
    leads_out,
    link_roots,
    make_candidate,
    relative_path,
    require_names,
)
from pipelines.ingest.shards import Drafted, Drafts, ShardSize, SourceFile
from pipelines.ingest.tables import Table
from pipelines.storage import Location, etag, readable_errors
from pipelines.tables import Refused, Rejection, Row

READERS = 16
"""Image files that are read at once."""


class ImageFile(NamedTuple):
    """An image file that can be read."""

    path: str
    size: int
    etag: str


class Offer(NamedTuple):
    """A table's row and its image file, or why there is none."""

    candidate: Candidate
    image: ImageFile | Rejection


class TableRow(NamedTuple):
    """A row of a table, and its image's path below the folder of images."""

    candidate: Candidate
    path: str


class FileUnit(NamedTuple):
    """The rows that make a shard."""

    generator: str
    rows: Sequence[TableRow]


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """A table and the folder that its paths start from."""

    table: Table
    folder: Location
    columns: InputColumnsConfig
    generator: str | None
    link_roots: Sequence[str]
    """Folders, besides `folder`, that links may lead to."""
    max_bytes: int
    size: ShardSize
    recipe: Mapping[str, Any]
    """The options that change what is in the shards."""

    @cached_property
    def _roots(self) -> list[Path]:
        return link_roots(self.folder.path, self.link_roots) if isinstance(self.folder.fs, LocalFileSystem) else []

    @cached_property
    def names(self) -> Names:
        return require_names(list(self.table.kinds), self.columns, self.generator, self.table.location.url)

    @cached_property
    def extras(self) -> list[str]:
        """The table's other columns; raises ConfigError where one of them has a shard's own name."""
        used = {name for role, name in self.names._asdict().items() if role != "generator" or self.generator is None}
        extras = [name for name in self.table.kinds if name not in used]
        clash = [name for name in extras if name in (*COLUMNS.names, "uri")]
        if clash:
            raise ConfigError(
                f"{self.table.location.url}: column {clash[0]!r} has the name of a shard's own; "
                f"take it by columns.*={clash[0]}, or rename it in the table"
            )
        return extras

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COLUMNS, *self.table.schema(self.extras)])

    @property
    def files(self) -> list[SourceFile]:
        location = self.table.location
        with readable_errors(location, "table"):
            entry = location.fs.info(location.path)
        return [SourceFile(location.url, entry["size"], etag(entry))]

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
            if len(waiting[generator]) == self.size.shard_rows:
                yield FileUnit(generator, waiting.pop(generator))
        yield from (FileUnit(generator, waiting[generator]) for generator in sorted(waiting))

    def _candidate(self, row: Row) -> TableRow | Rejection:
        file = self.table.location.url
        try:
            path = relative_path(row.values.get(self.names.image or ""))
            candidate = make_candidate(
                row.values,
                self.names,
                file=file,
                line=row.line,
                generator=self.generator,
                default_id=path,
                extras=self.table.values(row, self.extras),
            )
        except Refused as refused:
            return refused.at(file, row.line)
        return TableRow(candidate, path)

    def outline(self, unit: FileUnit, shards: Shards) -> Outline | None:
        """What the unit's shard is made of, where one stands in its place: its rows and each image's size and etag."""
        if not shards.next_stands(unit.generator):
            return None
        with ThreadPoolExecutor(READERS) as pool:
            return Outline([(unit.generator, self._content(self._find_all(unit, pool)))], [])

    def draft(self, unit: FileUnit, drafts: Drafts) -> list[Rejection]:
        """Drafts the unit's shard; raises ConfigError where the storage does not answer."""
        with ThreadPoolExecutor(READERS) as pool:
            offers = self._find_all(unit, pool)
            shard = drafts.begin(unit.generator, self._content(offers))
            for group in _groups(offers, self.size):
                for offer, image in zip(group, pool.map(self._read, group), strict=True):
                    if isinstance(offer.image, Rejection):
                        shard.refuse(offer.image)
                    else:
                        shard.add(offer.candidate, image)
        return []

    @property
    def urls(self) -> list[str]:
        """Where images are read."""
        return [self.folder.url]

    def name(self, unit: FileUnit) -> str:
        """What a unit is called in messages."""
        lines = [row.candidate.line for row in unit.rows]
        return f"{self.table.location.url}, lines {lines[0]} to {lines[-1]}"

    def end(self, unit: FileUnit, drafted: Drafted, output: Location) -> None:
        """A shard that stands tells by itself that it is there."""

    def _content(self, offers: Sequence[Offer]) -> str:
        return digest([self.recipe, str(self.schema), self.folder.url, offers])

    def _find_all(self, unit: FileUnit, pool: ThreadPoolExecutor) -> list[Offer]:
        return list(pool.map(lambda row: self._find(row.candidate, row.path), unit.rows))

    def _find(self, candidate: Candidate, relative: str) -> Offer:
        """Looks the image file up; raises ConfigError where the storage does not answer."""
        try:
            return Offer(candidate, _find_image(self.folder, relative, self._roots, self.max_bytes))
        except Refused as refused:
            return Offer(candidate, refused.at(candidate.file, candidate.line))

    def _read(self, offer: Offer) -> bytes:
        if isinstance(offer.image, Rejection):
            return b""
        with readable_errors(self.folder, f"{offer.image.path} in images"):
            content = bytes(self.folder.fs.cat_file(offer.image.path))
        if len(content) != offer.image.size:
            raise ConfigError(f"{offer.image.path}: the file changed while it was read; run the same command again")
        return content


def _groups(offers: Sequence[Offer], limits: ShardSize) -> Iterator[list[Offer]]:
    """As many rows as may be in memory at once."""
    group: list[Offer] = []
    total = 0
    for offer in offers:
        size = offer.image.size if isinstance(offer.image, ImageFile) else 0
        if group and (len(group) == limits.row_group_rows or total + size > limits.row_group_bytes):
            yield group
            group, total = [], 0
        group.append(offer)
        total += size
    if group:
        yield group


def _find_image(folder: Location, relative: str, roots: Sequence[Path], max_bytes: int) -> ImageFile:
    """The image file's size and etag; raises Refused where there is none to read, or a link leads out of `roots`."""
    path = folder.at(relative)
    local = isinstance(folder.fs, LocalFileSystem)
    if local and leads_out(path, roots):
        message = (
            f"{path}: a link leads out of {folder.url}; put the file itself there, or add its folder to link_roots"
        )
        raise Refused("outside_folder", message)
    with readable_errors(folder, "images"):
        try:
            entry = _local_entry(path) if local else folder.fs.info(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"no file at {path}; generate the image again, or correct the path"
            raise Refused("missing_image", message) from error
        except OSError as error:
            if not local and not isinstance(error, PermissionError):
                raise
            message = f"{path}: {error.strerror or error}; correct the path or the rights"
            raise Refused("unreadable_image", message) from error
    if entry["type"] != "file":
        raise Refused("missing_image", f"{path} is a {entry['type']}; the path of an image file is expected")
    if entry["size"] == 0:
        raise Refused("missing_image", f"{path} is empty; generate the image again")
    if entry["size"] > max_bytes:
        message = f"{path}: {entry['size']} bytes are over limits.max_bytes={max_bytes}; check it, or raise the limit"
        raise Refused("image_too_large", message)
    return ImageFile(path, entry["size"], etag(entry))


def _local_entry(path: str) -> dict[str, Any]:
    """A local file's facts; raises OSError."""
    found = os.stat(path)  # noqa: PTH116  # a path of a table: once per row
    kind = "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "device"
    if kind == "file" and not os.access(path, os.R_OK):
        raise PermissionError(13, "access denied")
    return {"type": kind, "size": found.st_size, "mtime": found.st_mtime_ns}
