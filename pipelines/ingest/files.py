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
from pipelines.ingest.shards import Report, Shards, SourceFile
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

    def write(self, shards: Shards, report: Report) -> None:
        """Writes every shard that does not stand; raises ConfigError where the storage does not answer."""
        with ThreadPoolExecutor(READERS) as pool:
            for rows in self._slices(shards):
                self._write_shard(rows, shards, pool, report)

    def _slices(self, shards: Shards) -> Iterator[list[tuple[Candidate, str]]]:
        """The rows with their paths, a generator's shard at a time; what remains comes last, by name."""
        waiting: dict[str, list[tuple[Candidate, str]]] = defaultdict(list)
        for row in self.table.rows(self.names.image or ""):
            found = row if isinstance(row, Rejection) else self._candidate(row)
            if isinstance(found, Rejection):
                shards.rejected.append(found)
                continue
            generator = found[0].generator
            waiting[generator].append(found)
            if len(waiting[generator]) == shards.size.shard_rows:
                yield waiting.pop(generator)
        yield from (waiting[generator] for generator in sorted(waiting))

    def _candidate(self, row: Row) -> tuple[Candidate, str] | Rejection:
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
        return candidate, path

    def _write_shard(
        self, rows: Sequence[tuple[Candidate, str]], shards: Shards, pool: ThreadPoolExecutor, report: Report
    ) -> None:
        """Makes a shard, unless it stands: its content is the rows as they are, and each image's size and etag."""
        offers = list(pool.map(lambda row: self._find(row[0], row[1]), rows))
        shard = shards.begin(rows[0][0].generator, digest([self.recipe, str(shards.schema), self.folder.url, offers]))
        for group in [] if shard.stands else _groups(offers, shards):
            for offer, image in zip(group, pool.map(self._read, group), strict=True):
                if isinstance(offer.image, Rejection):
                    shard.refuse(offer.image)
                else:
                    shard.add(offer.candidate, image)
        report(shard.close())

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


def _groups(offers: Sequence[Offer], shards: Shards) -> Iterator[list[Offer]]:
    """As many rows as may be in memory at once."""
    group: list[Offer] = []
    total = 0
    for offer in offers:
        size = offer.image.size if isinstance(offer.image, ImageFile) else 0
        if group and (len(group) == shards.size.row_group_rows or total + size > shards.size.row_group_bytes):
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
